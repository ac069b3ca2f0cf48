"""A sampler without a model: tokens of no meaning, each at the time that the costs say.

It keeps the promises of the `Sampler` protocol and passes its contract. Each token has the version
that was in use in its own decode step.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray
from trio.lowlevel import Abort, Task

from ..types import (
    NO_VERSION,
    Completion,
    FinishReason,
    Float32s,
    Int32s,
    SampleRequest,
    SamplerLoad,
)
from .decoding import Decoder
from .jobs import Job, Place
from .speeds import SamplerCosts
from .timers import Timers

UNLIMITED_ROWS = 2**31 - 1
_LOGPROB = -1.0


class SimulatedSampler:
    """Passes the contract of samplers, in virtual time."""

    def __init__(
        self,
        costs: SamplerCosts,
        timers: Timers,
        *,
        turn_tokens: Callable[[SampleRequest], int],
        context_tokens: int,
        why_idle: Callable[[], str] = str,
        on_row_seconds: Callable[[SampleRequest, float], None] | None = None,
    ):
        """Args:
        turn_tokens: how many tokens a turn has, its stop id included, if the budget allows.
        context_tokens: the longest prompt and completion together.
        why_idle: names the reason why rows are free, see `Decoder`.
        on_row_seconds: called when a request gives its row up for good.
        """
        self.engine = Decoder(costs, why_idle=why_idle)
        self.policy_version = NO_VERSION
        self._costs = costs
        self._turns_are_free = costs.turns_are_free
        self._timers = timers
        self._turn_tokens = turn_tokens
        self._context_tokens = min(context_tokens, costs.kv_tokens or context_tokens)
        self._on_row_seconds = on_row_seconds
        self._first_publish = trio.Event()
        self._early = 0  # requests that wait for it
        self._held: Counter[int] = Counter()
        self._waiters: dict[Job, tuple[SampleRequest, Task | None]] = {}
        self._publishing = trio.Lock()
        self._publisher: Task | None = None
        self._next_stop = math.inf
        if not self._turns_are_free:
            timers.at_instant_end(self._settle)

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one turn; see `Sampler`.

        Raises:
          ValueError: for a request without tokens or budget, or of a version not held.
        """
        self._check(request)
        budget = min(request.max_tokens, self._context_tokens - len(request.tokens))
        if budget < 1:
            await trio.lowlevel.checkpoint()
            return _completion((), request.stop_ids, FinishReason.PROMPT_TOO_LONG)
        wanted = max(1, self._turn_tokens(request)) if request.stop_ids else budget + 1
        finish = FinishReason.STOP if wanted <= budget else FinishReason.LENGTH
        tokens = min(wanted, budget)
        if not self._turns_are_free:
            spans = await self._spans(request, tokens)
        else:
            if self.policy_version == NO_VERSION:
                await self._wait_until_published()
            await trio.lowlevel.checkpoint_if_cancelled()
            version = self.policy_version if request.version is None else request.version
            spans = ((version, tokens),)
        return _completion(spans, request.stop_ids, finish)

    async def publish(self, params: Any, version: int) -> None:
        """Pause at the end of the step in progress, then go on with the new version."""
        if self._turns_are_free:
            await self._timers.sleep(self._costs.publish_seconds)
            self._adopt(version)
            return
        async with self._publishing:
            self.engine.publish(version)
            self._publisher = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._forget_publisher)

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        """Let requests be pinned to a version within the context.

        Raises:
          ValueError: for a version that is neither the newest one nor held.
        """
        self._check_held(version)
        self._held[version] += 1
        try:
            yield
        finally:
            self._held[version] -= 1

    def load(self) -> SamplerLoad:
        """Say how busy it is; without a limit of rows, all are free."""
        return SamplerLoad(
            rows=self._costs.rows or UNLIMITED_ROWS,
            rows_busy=self.engine.rows_busy,
            waiting=self._early + len(self.engine.waiting),
            pages_free=1 - self.engine.cache_share,
            preemptions=self.engine.preemptions,
        )

    def close(self) -> None:
        """Let time pass up to now, and take all requests out of their rows."""
        left = self.engine.settle(self._timers.now)
        self._deliver([*left, *self.engine.release_all()])

    async def _wait_until_published(self) -> None:
        self._early += 1
        try:
            await self._first_publish.wait()
        finally:
            self._early -= 1

    async def _spans(self, request: SampleRequest, tokens: int) -> tuple[tuple[int, int], ...]:
        """Wait until so many tokens are sampled; return (version, tokens) in order."""
        job = Job(
            request.key, request.priority, len(request.tokens), tokens, pinned=request.version
        )
        self._waiters[job] = request, trio.lowlevel.current_task()
        self.engine.submit(job)

        def abort(_: object) -> Abort:
            self._waiters[job] = request, None
            self.engine.cancel(job)
            if job.place is Place.GONE:  # it had no row now
                self._deliver([job])
            return Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if request.version is not None:
            return ((request.version, tokens),)
        return tuple(by_version(job, self.engine.published))

    def _settle(self) -> bool:
        """Let the engine see the instant that is over; true if somebody's wait is over too."""
        engine, now = self.engine, self._timers.now
        publishes = len(engine.published)
        woken = self._deliver(engine.settle(now))
        if len(engine.published) > publishes:
            self._adopt(engine.published[-1][1])
            woken = self._wake_publisher() or woken
        if now >= self._next_stop:
            self._next_stop = math.inf
        if (event := engine.next_event()) < self._next_stop:
            self._next_stop = event
            self._timers.stop_at(event)
        return woken

    def _adopt(self, version: int) -> None:
        self.policy_version = version
        self._first_publish.set()

    def _wake_publisher(self) -> bool:
        task, self._publisher = self._publisher, None
        if task is not None:
            trio.lowlevel.reschedule(task)
        return task is not None

    def _deliver(self, jobs: list[Job]) -> bool:
        woken = False
        for job in jobs:
            request, task = self._waiters.pop(job)
            if self._on_row_seconds is not None:
                self._on_row_seconds(request, job.row_seconds)
            if task is not None:
                trio.lowlevel.reschedule(task)
                woken = True
        return woken

    def _forget_publisher(self, _: object) -> Abort:
        self._publisher = None  # the swap happens all the same
        return Abort.SUCCEEDED

    def _check(self, request: SampleRequest) -> None:
        if len(request.tokens) == 0 or request.max_tokens < 1:
            raise ValueError(f"a request needs tokens and a budget, got {request}")
        if request.version is not None:
            self._check_held(request.version)

    def _check_held(self, version: int) -> None:
        allowed = {self.policy_version, *self._held.elements()} - {NO_VERSION}
        if version not in allowed:
            raise ValueError(
                f"version must be the newest or a held one, {sorted(allowed)}, got {version}; "
                "hold a version while it is the newest"
            )


def by_version(job: Job, published: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (version, tokens) of all that a job sampled, cut where a new version began."""
    spans: list[tuple[int, int]] = []
    for start, steps in job.spans:
        first = bisect.bisect(published, start, key=itemgetter(0)) - 1
        last = bisect.bisect_left(published, start + steps, key=itemgetter(0))
        cuts = [start, *(step for step, _ in published[first + 1 : last]), start + steps]
        versions = [version for _, version in published[first:last]]
        tokens = [end - begin for begin, end in itertools.pairwise(cuts)]
        spans += zip(versions, tokens, strict=True)
    return spans


# Most turns look alike, so one completion, with read-only arrays, is that of many.


@lru_cache(maxsize=1024)
def _completion(
    spans: tuple[tuple[int, int], ...], stop_ids: tuple[int, ...], finish: FinishReason
) -> Completion:
    length = sum(tokens for _, tokens in spans)
    last = stop_ids[0] if finish is FinishReason.STOP else None
    return Completion(_tokens(length, stop_ids, last), _logprobs(length), _versions(spans), finish)


@lru_cache(maxsize=1024)
def _logprobs(length: int) -> Float32s:
    return _read_only(np.full(length, _LOGPROB, np.float32))


@lru_cache(maxsize=1024)
def _tokens(length: int, stop_ids: tuple[int, ...], last: int | None) -> Int32s:
    fill = next(index for index in range(len(stop_ids) + 1) if index not in stop_ids)
    tokens = np.full(length, fill, np.int32)
    if last is not None:
        tokens[-1] = last
    return _read_only(tokens)


def _versions(spans: tuple[tuple[int, int], ...]) -> Int32s:
    versions = np.array([version for version, _ in spans], np.int32)
    return _read_only(np.repeat(versions, [tokens for _, tokens in spans]))


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
