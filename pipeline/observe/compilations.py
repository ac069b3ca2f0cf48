"""Counts the programs that XLA compiles, to show that none is compiled after warm-up."""

from types import TracebackType
from typing import Self

from jax import monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Counts compilations of this process while open, on all threads.

    A program found in the persistent compilation cache counts too: it was new to this process.

    Example:
      >>> import jax
      >>> with CompilationCounter() as compilations:
      ...     program = jax.jit(lambda x: x * 3 + 1)
      ...     _ = program(2.0)
      ...     compilations.mark()
      ...     _ = program(4.0)
      ...     compilations.since_mark
      0
    """

    def __init__(self) -> None:
        self._total = 0
        self._marked = 0

    @property
    def total(self) -> int:
        """Compilations since the counter was opened."""
        return self._total

    @property
    def since_mark(self) -> int:
        """Compilations since the last `mark()`, since the opening if there was none."""
        return self._total - self._marked

    def mark(self) -> None:
        """Start counting `since_mark` from here."""
        self._marked = self._total

    def __enter__(self) -> Self:
        monitoring.register_event_duration_secs_listener(self._on_duration)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        monitoring.unregister_event_duration_listener(self._on_duration)

    def _on_duration(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            self._total += 1
