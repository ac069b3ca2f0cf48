"""A sampler and a learner of one integer version, for tests of what stands between them."""

from collections.abc import Callable

import numpy as np
import trio

from headrace.pipeline.types import Completion, FinishReason, SampleRequest


class FakePolicy:
    """Samples one stop token in `sample_seconds(request)`; learns in `update_seconds`.

    Tokens carry the version published last, as those of a real sampler do.
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
        self._sample_seconds = sample_seconds
        self._update_seconds = update_seconds
        self._publish_seconds = publish_seconds

    async def sample(self, request: SampleRequest) -> Completion:
        await trio.sleep(self._sample_seconds(request))
        return Completion(
            np.array(request.stop_ids[:1], np.int32),
            np.zeros(1, np.float32),
            np.array([self.version], np.int32),
            FinishReason.STOP,
        )

    async def update(self, batch: object) -> dict[str, float]:
        await trio.sleep(self._update_seconds)
        self.updates += 1
        return {"loss": 0.0}

    async def publish(self, version: int) -> None:
        assert version <= self.updates
        await trio.sleep(self._publish_seconds)
        self.version = version
