"""The loop body of the device thread: one `step` is a prefill and a decode of each version.

All methods run on one thread. Weights change only between two steps, and a dispatch serves
the rows of one version, so all tokens of a dispatch have the same version. The rows of all
versions live side by side in the one state.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from ..models.model import Model
from ..sampling import Constraint
from ..types import Completion, Int32s, SampleRequest
from .config import SamplerConfig
from .dispatches import DecodeDispatch
from .expert_record import with_experts
from .layout import num_shards
from .occupant import Ticket
from .packed import unpack_sampled
from .packing import pack
from .programs import Programs, compile_programs
from .relocate import relocate
from .rows import DecodeInput
from .scheduler import Finished, Scheduler
from .state import SamplerState, Views
from .stops import DecodeText
from .turns import SampledBlock


@dataclass(frozen=True)
class SamplerStatistics:
    """What the sampler has done since it was made.

    Attributes:
      rows_busy: rows with a request, now.
      waiting: requests without a row, now.
      generated_tokens: tokens sampled, those of cancelled requests included.
      prefill_tokens: prompt tokens written to the cache by prefill.
      dispatches: decode dispatches.
      cancelled: requests that were cancelled.
      preemptions: requests that lost their row, or whose cache was lost between two turns,
        since memory was short.
      pages_free: share of the pages that no request with a row holds, now.
      live_versions: versions whose weights are in memory, now.
      busy_seconds: wall time in which the engine had work.
      constraint_seconds: the part of it in which all rows waited for requests' constraints.
    """

    rows_busy: int = 0
    waiting: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    dispatches: int = 0
    cancelled: int = 0
    preemptions: int = 0
    pages_free: float = 1.0
    live_versions: int = 0
    busy_seconds: float = 0.0
    constraint_seconds: float = 0.0


@dataclass
class _Loaded:
    """What exists from the first publish on; `state` is replaced by every dispatch.

    Attributes:
      no_update: on the device, so that a dispatch in which no row changes sends none.
      views: of the window of the last decode dispatch; None before the first.
    """

    programs: Programs
    state: SamplerState
    no_update: jax.Array
    window: int = 0
    views: Views | None = None

    def views_of(self, window: int) -> Views:
        """The rows' views; those of another window go before new ones come."""
        if self.views is None or window != self.window:
            self.window, self.views = window, None
            self.views = self.programs.views[window]()
        return self.views


class Engine:
    """Scheduler, compiled programs and device state of one sampler."""

    def __init__(
        self,
        config: SamplerConfig,
        model: Model,
        *,
        mesh: Mesh | None = None,
        programs: Programs | None = None,
        decode_text: DecodeText | None = None,
    ):
        self._config = config
        self._model = model
        self._programs = programs
        self._mesh = mesh
        self._scheduler = Scheduler(
            config, model.vocab_size, shards=num_shards(mesh), decode_text=decode_text
        )
        self._loaded: _Loaded | None = None
        self._weights: dict[int, Any] = {}  # by version
        self._unread: list[tuple[DecodeDispatch, jax.Array]] = []  # dispatched, in order
        self._finished: list[Finished] = []
        self._generated_tokens = 0
        self._dispatches = 0
        self._cancelled = 0
        self._busy_seconds = 0.0
        self._constraint_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        if self._loaded is None:
            return False
        return bool(not self._scheduler.idle or self._unread or self._finished)

    def statistics(self) -> SamplerStatistics:
        """Take a snapshot; may be called from any thread."""
        return SamplerStatistics(
            rows_busy=self._scheduler.rows_busy,
            waiting=self._scheduler.waiting,
            generated_tokens=self._generated_tokens,
            prefill_tokens=self._scheduler.prefilled_tokens,
            dispatches=self._dispatches,
            cancelled=self._cancelled,
            preemptions=self._scheduler.preemptions,
            pages_free=self._scheduler.pages_free,
            live_versions=len(self._weights),
            busy_seconds=self._busy_seconds,
            constraint_seconds=self._constraint_seconds,
        )

    def compile(self) -> Programs:
        """Compile all programs, unless that is done; nothing compiles afterwards."""
        if self._programs is None:
            self._programs = compile_programs(self._config, self._model, mesh=self._mesh)
        return self._programs

    def publish(self, params: Any, version: int) -> None:
        """Use these weights from the next step on, for all rows whose request names no version.

        Rows in flight keep their cache. The weights before stay until they are dropped.

        Raises:
          ValueError: where the version is no newer than the newest, or the weights aren't those
            of the model; then nothing has changed.
        """
        newest = self._scheduler.newest
        if version <= newest:
            raise ValueError(
                f"the version to publish must be > {newest}, the newest, got {version}; "
                "weights that differ need a new version"
            )
        if self._loaded is None:
            programs = self.compile()
            self._loaded = _Loaded(programs, programs.initial_state(), programs.no_update())
        self._read()
        self._weights[version] = self._loaded.programs.place(params)
        self._scheduler.publish(version)

    def weights(self, version: int) -> Any:
        """Return the weights of a version that is alive."""
        return self._weights[version]

    def drop(self, version: int) -> None:
        """Let go of the weights of an older version, which no request needs any more."""
        del self._weights[version]
        self._scheduler.drop(version)

    def submit(self, ticket: Ticket, request: SampleRequest) -> None:
        """Take in a request; see `Scheduler.submit`."""
        constraint = request.sampling.constraint
        if constraint is not None:
            timed = replace(request.sampling, constraint=partial(self._ask, constraint))
            request = replace(request, sampling=timed)
        self._scheduler.submit(ticket, request)

    def _ask(self, constraint: Constraint, sampled: Int32s) -> Collection[int]:
        """Call a constraint; the scheduler has no clock."""
        started = time.perf_counter()
        try:
            return constraint(sampled)
        finally:
            self._constraint_seconds += time.perf_counter() - started

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request, unless it has left already."""
        self._cancelled += self._scheduler.cancel(ticket)

    def step(self) -> list[Finished]:
        """Fill free rows; then for each version prefill some chunks and decode a few tokens.

        The oldest version comes first: what it samples is due first. The next dispatches are
        under way before the last ones' results are read, where that makes nobody wait.

        Returns:
          What is complete.
        """
        if self._loaded is None or not self.has_work:
            return []
        started = time.perf_counter()
        if self._unread and not self._scheduler.may_run_ahead:
            self._read()
        before, self._unread = self._unread, []
        self._scheduler.assign()
        for version in self._scheduler.versions():
            self._move(self._loaded)
            self._prefill(self._loaded, version)
            self._decode(self._loaded, version)
        under_way, self._unread = self._unread, before
        self._read()
        self._unread = under_way
        if not self._scheduler.may_run_ahead:
            self._read()
        finished, self._finished = self._finished, []
        self._busy_seconds += time.perf_counter() - started
        return finished

    def _prefill(self, loaded: _Loaded, version: int) -> None:
        dispatch = self._scheduler.next_prefill(version)
        if dispatch is not None:
            program = loaded.programs.prefill[dispatch.window]
            loaded.state = program(self._weights[version], loaded.state, pack(dispatch.chunk))

    def _decode(self, loaded: _Loaded, version: int) -> None:
        dispatch = self._scheduler.next_decode(version)
        self._finished += self._scheduler.take_refused()
        self._move(loaded)
        if dispatch is None:
            return
        # The window that the served rows need, not that of all rows: the others write nothing,
        # and what they compute from a window that cuts them off is thrown away. A served row's
        # bits are the same in every window that holds it, whoever of its neighbours chose it.
        program = loaded.programs.decode[dispatch.window]
        views, weights = loaded.views_of(dispatch.window), self._weights[version]
        update = loaded.no_update if dispatch.update is None else pack(dispatch.update)
        inputs = DecodeInput(update, dispatch.packed)
        loaded.state, loaded.views, decoded = program(weights, loaded.state, views, inputs)
        self._unread.append((dispatch, decoded))
        self._dispatches += 1

    def _read(self) -> None:
        """Wait for the results that weren't read, and take them in."""
        for dispatch, decoded in self._unread:
            assert self._loaded is not None, "something was dispatched"
            block = unpack_sampled(self._loaded.programs.read(decoded))
            self._generated_tokens += int(block.num_sampled.sum())
            if self._config.draws.record_experts:
                self._finished += self._record_with_experts(dispatch, block)
            else:
                self._finished += self._scheduler.record(dispatch, block)
        self._unread = []

    def _record_with_experts(
        self, dispatch: DecodeDispatch, block: SampledBlock
    ) -> list[Finished]:
        assert self._loaded is not None, "something was dispatched"
        programs, state = self._loaded.programs, self._loaded.state
        rows = self._scheduler.decoding_rows()
        finished: list[Finished] = []
        for ticket, answer in self._scheduler.record(dispatch, block):
            if isinstance(answer, Completion):
                row, prompt_tokens = rows[ticket]
                answer = with_experts(  # noqa: PLW2901 - the same answer, with more in it
                    answer,
                    dispatch.plan.tables[row],
                    prompt_tokens=prompt_tokens,
                    shard=row * programs.shards // self._config.rows,
                    loaded=(programs, state),
                    config=self._config,
                )
            finished.append((ticket, answer))
        return finished

    def _move(self, loaded: _Loaded) -> None:
        """Do with whole pages what the scheduler asked for, in its order."""
        moves = self._scheduler.take_moves()
        if moves:
            loaded.state = relocate(moves, loaded.state, loaded.programs, self._config)
