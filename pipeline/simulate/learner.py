"""A learner without a model: an update takes the time that its batch costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..types import TrainBatch
from .speeds import LearnerCosts
from .timers import Timers


@dataclass
class SimulatedLearner:
    """Takes its time.

    Attributes:
      on_updated: called when an update ends, with the seconds of its constant part and those
        of its tokens.
    """

    costs: LearnerCosts
    timers: Timers
    on_updated: Callable[[float, float], None]

    async def update(self, batch: TrainBatch) -> Mapping[str, float]:
        """Take the batch's time."""
        constant = self.costs.update_seconds
        token_seconds = tokens_in_use(batch) * self.costs.token_seconds
        await self.timers.sleep(constant + token_seconds)
        self.on_updated(constant, token_seconds)
        return {}


def tokens_in_use(batch: TrainBatch) -> int:
    """Return how many tokens an update works on, padding included."""
    _, rows, row_tokens = batch.tokens.shape
    return int(batch.microbatches) * int(rows) * int(row_tokens)
