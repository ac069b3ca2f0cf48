"""The loop body of the device thread: one `step` is at most one prefill and one decode.

All methods run on one thread. Weights change only between two steps, so all tokens of a
dispatch have the same version.
"""

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..models.config import ModelConfig
from ..types import NO_VERSION, Completion, SampleRequest
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
      busy_seconds: wall time in which the engine had work.
    """

    rows_busy: int = 0
    waiting: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    dispatches: int = 0
    cancelled: int = 0
    busy_seconds: float = 0.0


@dataclass
class _Loaded:
    """What exists from the first publish on; `state` is replaced by every dispatch."""

    programs: Programs
    state: SamplerState
    params: Any
    version: int


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
        self._generated_tokens = 0
        self._dispatches = 0
        self._cancelled = 0
        self._busy_seconds = 0.0

    @property
    def version(self) -> int:
        """The version of the weights in use, `NO_VERSION` before the first publish."""
        return NO_VERSION if self._loaded is None else self._loaded.version

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
            busy_seconds=self._busy_seconds,
        )

    def compile(self) -> Programs:
        """Compile all programs, unless that is done; nothing compiles afterwards."""
        if self._programs is None:
            self._programs = compile_programs(self._config, self._model, self._vocab_size)
        return self._programs

    def publish(self, params: Any, version: int) -> None:
        """Use these weights from the next step on; rows in flight keep their cache."""
        if self._loaded is None:
            programs = self.compile()
            self._loaded = _Loaded(programs, programs.initial_state(), params, version)
        self._loaded.params, self._loaded.version = params, version

    def submit(self, ticket: Ticket, request: SampleRequest) -> None:
        """Take in a request; see `Scheduler.submit`."""
        self._scheduler.submit(ticket, request)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request, unless it has left already."""
        self._cancelled += self._scheduler.cancel(ticket)

    def step(self) -> list[tuple[Ticket, Completion]]:
        """Fill free rows, prefill one chunk, decode a few tokens; return what is complete."""
        if self._loaded is None or self._scheduler.idle:
            return []
        started = time.perf_counter()
        self._scheduler.assign()
        self._prefill(self._loaded)
        finished = self._decode(self._loaded) if self._scheduler.decoding else []
        self._busy_seconds += time.perf_counter() - started
        return finished

    def _prefill(self, loaded: _Loaded) -> None:
        chunk = self._scheduler.next_prefill()
        if chunk is None:
            return
        last = int(chunk.starts.max()) + self._config.prefill_tokens
        program = loaded.programs.prefill[self._config.window_for(last)]
        loaded.state = program(loaded.params, loaded.state, chunk)

    def _decode(self, loaded: _Loaded) -> list[tuple[Ticket, Completion]]:
        program = loaded.programs.decode[
            self._config.window_for(self._scheduler.positions_needed())
        ]
        update = self._scheduler.take_update()
        loaded.state, decoded = program(loaded.params, loaded.state, update)
        tokens, logprobs, was_active, active = jax.device_get(decoded)
        self._dispatches += 1
        self._generated_tokens += int(np.count_nonzero(was_active))
        block = SampledBlock(tokens, logprobs, was_active, active, loaded.version)
        return self._scheduler.record(block)
