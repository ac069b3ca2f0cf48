"""A learner without a model: what it is given, and how long an update takes.

Batches are really packed, so that padding costs what it costs, or only as many tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..algorithms.advantages import group_relative
from ..groups.batching import BatchStatistics, form_batch
from ..groups.packing import microbatches_needed
from ..types import TrainBatch, TrajectoryGroup
from .scenarios import Simulation
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


Pack = Callable[[Sequence[TrajectoryGroup], int], tuple[TrainBatch, BatchStatistics]]


def make_pack(simulation: Simulation) -> Pack:
    """Return the learner's real packing, or none where the simulation has no padding.

    Rows hold at least the longest episode, also where a flag made that longer.
    """
    packing, size = simulation.packing, simulation.rollout.group_size
    if packing is None:
        return unpadded
    rows = packing.microbatch_rows
    row_tokens = max(packing.row_tokens, simulation.rollout.max_tokens)
    most = simulation.schedule.batch_groups * size
    needed = microbatches_needed(most, simulation.rollout.max_tokens, rows, row_tokens)
    schedule = simulation.schedule
    return partial(
        _packed,
        group_size=size,
        shape=(needed, rows, row_tokens),
        max_lag=schedule.max_lag if schedule.over_age == "mask" else None,
    )


def unpadded(groups: Sequence[TrajectoryGroup], batch: int) -> tuple[TrainBatch, BatchStatistics]:
    """Return a batch of as many tokens as the groups have, without anything in it.

    Of the statistics only the counts are there: nothing in a simulation reads the others.

    Example:
      >>> empty, statistics = unpadded([], 3)
      >>> empty.tokens.shape, statistics.groups
      ((1, 1, 0), 0)
    """
    lengths = [len(each.tokens) for group in groups for each in group.trajectories]
    nothing = np.zeros((1, 1, sum(lengths)), np.int8)
    described = BatchStatistics(
        groups=len(groups),
        trajectories=len(lengths),
        useful_trajectories=len(lengths),
        flat_groups=0,
        tokens=sum(lengths),
        sampled_tokens=0,
        masked_tokens=0,
        padding_share=0.0,
        reward_mean=0.0,
        success_mean=None,
        lag_mean=0.0,
        lag_max=0,
        in_flight_mean=0.0,
    )
    arrays = dict.fromkeys(TrainBatch._fields, nothing) | {"microbatches": 1}
    return TrainBatch(**arrays), described


def _packed(
    groups: Sequence[TrajectoryGroup],
    batch: int,
    *,
    group_size: int,
    shape: tuple[int, int, int],
    max_lag: int | None,
) -> tuple[TrainBatch, BatchStatistics]:
    return form_batch(
        groups, group_relative, batch=batch, group_size=group_size, shape=shape, max_lag=max_lag
    )
