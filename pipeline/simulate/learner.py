"""A learner without a model: an update takes the time that its batch costs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..types import TrainBatch
from .speeds import LearnerCosts
from .timers import Timers


@dataclass
class SimulatedLearner:
    """Counts updates, and how long they took.

    Attributes:
      on_updated: called with the seconds of an update when it ends.
      busy_seconds: spent in updates so far.
    """

    costs: LearnerCosts
    timers: Timers
    on_updated: Callable[[float], None]
    busy_seconds: float = 0.0

    async def update(self, batch: TrainBatch) -> Mapping[str, float]:
        """Take the batch's time."""
        seconds = self.costs.update_seconds + tokens_in_use(batch) * self.costs.token_seconds
        await self.timers.sleep(seconds)
        self.busy_seconds += seconds
        self.on_updated(seconds)
        return {}


def tokens_in_use(batch: TrainBatch) -> int:
    """Return how many tokens an update works on, padding included."""
    _, rows, row_tokens = batch.tokens.shape
    return int(batch.microbatches) * int(rows) * int(row_tokens)
