"""A sampler and a learner of one integer version, for tests of what stands between them."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import numpy as np
import trio

from headrace.pipeline.types import Completion, FinishReason, SampleRequest, SamplerLoad

Hook = Callable[[str, object], Awaitable[None]]

TOKEN = 9  # what it says, besides the id that closes a turn


async def nothing(call: str, detail: object) -> None: ...


class FakePolicy:
    """Samples turns of up to two tokens; each has the version that is there when it is ready.

    `hook` is awaited in each call, and may wait or raise: "request" when a turn is asked for,
    "token" before each token, "update" in the middle of an update, "publish" before the new
    version is in use and "acknowledge" after it.
    """

    def __init__(
        self,
        *,
        sample_seconds: Callable[[SampleRequest], float] = lambda request: 1.0,
        update_seconds: float = 1.0,
        publish_seconds: float = 0.0,
        hook: Hook = nothing,
        rows: int = 1024,
    ):
        """Args:
        sample_seconds: of a whole turn, once it has a row.
        rows: so many turns are sampled at once, those of the smallest priority first.
        """
        self.version = 0
        self.versions = [0]
        self.published_at = [0.0]
        self.updates = 0
        self.held: Counter[int] = Counter()
        self.wrong_versions: list[int | None] = []
        self.sampling = 0
        self.requests: list[SampleRequest] = []
        self.preemptions = 0
        self._changing = False
        self._sample_seconds = sample_seconds
        self._update_seconds = update_seconds
        self._publish_seconds = publish_seconds
        self._hook = hook
        self._rows = Rows(rows)

    @property
    def holds(self) -> int:
        """How many holds were not given back."""
        return self.held.total()

    async def sample(self, request: SampleRequest) -> Completion:
        self.requests.append(request)
        self.sampling += 1
        try:
            self._check(request.version)
            await self._hook("request", request)
            async with self._rows.one(request.priority):
                return await self._turn(request)
        finally:
            self.sampling -= 1

    async def _turn(self, request: SampleRequest) -> Completion:
        tokens = [TOKEN, request.stop_ids[0]][-min(2, request.max_tokens) :]
        versions = []
        for _ in tokens:
            await trio.sleep(self._sample_seconds(request) / len(tokens))
            await self._hook("token", request)
            self._check(request.version)
            versions.append(self.version if request.version is None else request.version)
        return Completion(
            np.array(tokens, np.int32),
            np.zeros(len(tokens), np.float32),
            np.array(versions, np.int32),
            FinishReason.STOP,
        )

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        self._check(version)
        self.held[version] += 1
        try:
            yield
        finally:
            self.held[version] -= 1

    def load(self) -> SamplerLoad:
        rows = self._rows
        return SamplerLoad(rows.total, rows.busy, rows.waiting, preemptions=self.preemptions)

    def _check(self, version: int | None) -> None:
        if version not in (None, self.version) and not self.held[version]:
            if (
                trio.current_effective_deadline() > -math.inf
            ):  # else nobody wants the turn any more
                self.wrong_versions.append(version)  # as an episode makes a failure of the error
            raise ValueError(f"version {version} is asked for, {self.held} are held")

    async def update(self, batch: object) -> dict[str, float]:
        with self._change_of_weights():
            await trio.sleep(self._update_seconds)
            await self._hook("update", batch)
            self.updates += 1
        return {"loss": 0.0}

    async def publish(self, version: int) -> None:
        with self._change_of_weights():
            assert version > self.version
            await trio.sleep(self._publish_seconds)
            await self._hook("publish", version)
            self.version = version
            self.versions.append(version)
            self.published_at.append(trio.current_time())
            await self._hook("acknowledge", version)

    @contextmanager
    def _change_of_weights(self) -> Iterator[None]:
        assert not self._changing, "two updates or publishes at once"
        self._changing = True
        try:
            yield
        finally:
            self._changing = False


class Rows:
    """So many at once; those that wait are served by priority, then in order of arrival."""

    def __init__(self, total: int):
        self.total = total
        self.busy = 0
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._numbers = itertools.count()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def one(self, priority: int) -> AsyncIterator[None]:
        place = (priority, next(self._numbers), trio.Event())
        heapq.heappush(self._waiting, place)
        self._serve()
        try:
            await place[2].wait()
            yield
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
                heapq.heapify(self._waiting)
            else:
                self.busy -= 1
                self._serve()

    def _serve(self) -> None:
        while self._waiting and self.busy < self.total:
            self.busy += 1
            heapq.heappop(self._waiting)[2].set()
