"""A sampler and a learner of one integer version, for tests of what stands between them."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import trio

from headrace.pipeline.types import Completion, FinishReason, SampleRequest, SamplerLoad


class FakePolicy:
    """Samples one stop token in `sample_seconds(request)`; learns in `update_seconds`.

    Tokens carry the version published last, or the one that the request asks for, as those of
    a real sampler do.
    """

    def __init__(
        self,
        *,
        sample_seconds: Callable[[SampleRequest], float] = lambda request: 1.0,
        update_seconds: float = 1.0,
        publish_seconds: float = 0.0,
    ):
        self.version = 0
        self.updates = 0
        self.held: Counter[int] = Counter()
        self.sampling = 0
        self._sample_seconds = sample_seconds
        self._update_seconds = update_seconds
        self._publish_seconds = publish_seconds

    async def sample(self, request: SampleRequest) -> Completion:
        self.sampling += 1
        try:
            self._check(request.version)
            await trio.sleep(self._sample_seconds(request))
            self._check(request.version)
        finally:
            self.sampling -= 1
        version = self.version if request.version is None else request.version
        return Completion(
            np.array(request.stop_ids[:1], np.int32),
            np.zeros(1, np.float32),
            np.array([version], np.int32),
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
        return SamplerLoad(rows=1024, rows_busy=self.sampling, waiting=0)

    def _check(self, version: int | None) -> None:
        there = version in (None, self.version) or self.held[version] > 0
        assert there, f"version {version} is asked for, {self.held} and {self.version} are there"

    async def update(self, batch: object) -> dict[str, float]:
        await trio.sleep(self._update_seconds)
        self.updates += 1
        return {"loss": 0.0}

    async def publish(self, version: int) -> None:
        assert version <= self.updates
        await trio.sleep(self._publish_seconds)
        self.version = version
