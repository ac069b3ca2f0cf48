"""The loop body of the device thread: one `step` is a prefill and a decode of each version.

All methods run on one thread. Weights change only between two steps, and a dispatch serves
the rows of one version, so all tokens of a dispatch have the same version. The rows of all
versions live side by side in the one state.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..models.config import ModelConfig
from ..types import Completion, SampleRequest
from .config import SamplerConfig
from .programs import Programs, compile_programs
from .scheduler import SampledBlock, Scheduler, Ticket
from .state import SamplerState


@dataclass(frozen=True)
class SamplerStatistics:
    """What the sampler has done since it was made.

    Attributes:
      rows_busy: rows with a request, now.
      waiting: requests without a row, now.
      generated_tokens: tokens sampled, those of cancelled requests included.
      prefill_tokens: prompt tokens written to the cache.
      dispatches: decode dispatches.
      cancelled: requests that were cancelled.
      live_versions: versions whose weights are in memory, now.
      busy_seconds: wall time in which the engine had work.
    """

    rows_busy: int = 0
    waiting: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    dispatches: int = 0
    cancelled: int = 0
    live_versions: int = 0
    busy_seconds: float = 0.0


@dataclass
class _Loaded:
    """What exists from the first publish on; `state` is replaced by every dispatch."""

    programs: Programs
    state: SamplerState


class Engine:
    """Scheduler, compiled programs and device state of one sampler."""

    def __init__(
        self,
        config: SamplerConfig,
        model: ModelConfig,
        vocab_size: int,
        *,
        programs: Programs | None = None,
    ):
        self._config = config
        self._model = model
        self._vocab_size = vocab_size
        self._programs = programs
        self._scheduler = Scheduler(config)
        self._loaded: _Loaded | None = None
        self._weights: dict[int, Any] = {}  # by version
        self._generated_tokens = 0
        self._dispatches = 0
        self._cancelled = 0
        self._busy_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self._loaded is not None and not self._scheduler.idle

    def statistics(self) -> SamplerStatistics:
        """Take a snapshot; may be called from any thread."""
        return SamplerStatistics(
            rows_busy=self._scheduler.rows_busy,
            waiting=self._scheduler.waiting,
            generated_tokens=self._generated_tokens,
            prefill_tokens=self._scheduler.prefilled_tokens,
            dispatches=self._dispatches,
            cancelled=self._cancelled,
            live_versions=len(self._weights),
            busy_seconds=self._busy_seconds,
        )

    def compile(self) -> Programs:
        """Compile all programs, unless that is done; nothing compiles afterwards."""
        if self._programs is None:
            self._programs = compile_programs(self._config, self._model, self._vocab_size)
        return self._programs

    def publish(self, params: Any, version: int) -> None:
        """Use these weights from the next step on, for all rows whose request names no version.

        Rows in flight keep their cache. The weights before stay until they are dropped.

        Raises:
          ValueError: where the version is no newer than the newest.
        """
        newest = self._scheduler.newest
        if version <= newest:
            raise ValueError(
                f"the version to publish must be > {newest}, the newest, got {version}; "
                "weights that differ need a new version"
            )
        if self._loaded is None:
            programs = self.compile()
            self._loaded = _Loaded(programs, programs.initial_state())
        self._weights[version] = params
        self._scheduler.publish(version)

    def drop(self, version: int) -> None:
        """Let go of the weights of an older version, which no request needs any more."""
        del self._weights[version]

    def submit(self, ticket: Ticket, request: SampleRequest) -> None:
        """Take in a request; see `Scheduler.submit`."""
        self._scheduler.submit(ticket, request)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request, unless it has left already."""
        self._cancelled += self._scheduler.cancel(ticket)

    def step(self) -> list[tuple[Ticket, Completion]]:
        """Fill free rows; then for each version prefill a chunk and decode a few tokens.

        The oldest version comes first: what it samples is due first.

        Returns:
          What is complete.
        """
        if self._loaded is None or self._scheduler.idle:
            return []
        started = time.perf_counter()
        self._scheduler.assign()
        finished = []
        for version in self._scheduler.versions():
            self._prefill(self._loaded, version)
            finished += self._decode(self._loaded, version)
        self._busy_seconds += time.perf_counter() - started
        return finished

    def _prefill(self, loaded: _Loaded, version: int) -> None:
        chunk = self._scheduler.next_prefill(version)
        if chunk is None:
            return
        last = int(chunk.starts.max()) + self._config.prefill_tokens
        program = loaded.programs.prefill[self._config.window_for(last)]
        loaded.state = program(self._weights[version], loaded.state, chunk)

    def _decode(self, loaded: _Loaded, version: int) -> list[tuple[Ticket, Completion]]:
        dispatch = self._scheduler.next_decode(version)
        if dispatch is None:
            return []
        # The window that the served rows need, not that of all rows: the others write nothing,
        # and what they compute from a window that cuts them off is thrown away. A served row's
        # bits are the same in every window that holds it, whoever of its neighbours chose it.
        program = loaded.programs.decode[self._config.window_for(dispatch.positions)]
        loaded.state, decoded = program(
            self._weights[version], loaded.state, dispatch.update, dispatch.served
        )
        tokens, logprobs, was_active, active = jax.device_get(decoded)
        self._dispatches += 1
        self._generated_tokens += int(np.count_nonzero(was_active))
        block = SampledBlock(tokens, logprobs, was_active, active, version)
        return self._scheduler.record(block)
