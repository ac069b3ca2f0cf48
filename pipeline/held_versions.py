"""The policy versions that a controller keeps in the sampler, as long as groups need them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from .errors import stage


class HeldVersions:
    """Holds versions, each once, until it is told which are needed no longer."""

    def __init__(self, hold: Callable[[int], AbstractContextManager[None]]):
        """Args:
        hold: keeps a version, the newest or one that is held, while the context lasts.
        """
        self._hold = hold
        self._held: dict[int, ExitStack] = {}

    def hold(self, version: int) -> None:
        """Keep the newest version."""
        self._held[version] = ExitStack()
        with stage("sampler"):
            self._held[version].enter_context(self._hold(version))

    def release(self, *, below: int | None = None) -> None:
        """Let go of the versions below one; of all if none is given."""
        for version in [*self._held]:
            if below is None or version < below:
                with stage("sampler"):
                    self._held.pop(version).close()

    def versions(self, oldest: int, below: int) -> tuple[int, ...]:
        """Return those from `oldest` on, in order, without `below` and newer ones."""
        return tuple(version for version in sorted(self._held) if oldest <= version < below)

    @contextmanager
    def hold_again(self, versions: Sequence[int]) -> Iterator[None]:
        """Keep held versions within the context also where they are released meanwhile."""
        with ExitStack() as held:
            for version in versions:
                held.enter_context(self._hold(version))
            yield
