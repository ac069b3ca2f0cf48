"""Whole groups become one packed batch with advantages.

A group's advantages depend on its own rewards only, so neither the batch's other groups nor the
packing changes them; every token of every group is in the batch exactly once. The samples of one
episode are sequences of their own with the episode's advantage.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..algorithms.advantages import AdvantageEstimator
from ..algorithms.config import PLAIN_REWARDS, RewardsConfig
from ..types import NO_VERSION, Float32s, StopReason, TrainBatch, Trajectory, TrajectoryGroup
from .credit import group_credit, token_credit
from .packing import PackItem, microbatches_needed, pack
from .policy_version import lag

__all__ = [
    "BatchStatistics",
    "PackItem",
    "form_batch",
    "microbatches_needed",
    "pack",
]

Normalize = Callable[[Float32s], Float32s]
"""From the advantages of all trajectories of a batch, or of all their turns, to new ones."""

_OUT_OF_TOKENS = (StopReason.MAX_TURN_TOKENS, StopReason.MAX_TOKENS)


@dataclass(frozen=True)
class BatchStatistics:
    """What is in one batch. Means are over trajectories, those of lags over groups.

    Attributes:
      useful_trajectories: those with an advantage other than 0, as far as the host makes them: a
        critic's, and a penalty in the reward, come in the learner.
      flat_groups: groups without any such trajectory: they teach nothing.
      tokens: all tokens, prompts and observations included.
      sampled_tokens: those in the loss.
      masked_tokens: those that were sampled too, but are too old for the loss, or of an episode
        that was cut where such are left out.
      padding_share: share of the tokens of the microbatches in use that are padding, 0..1.
      success_mean: mean of `info["success"]`, 0 for an episode that was cut before it had any;
        None where no episode has one.
      lag_mean: versions; the batch's number minus a group's oldest version, but at most
        `max_lag` where older tokens are left out of the loss.
      in_flight_mean: the part of the lag that arose while the group was running, in versions;
        the rest arose while it waited.
    """

    groups: int
    trajectories: int
    useful_trajectories: int
    flat_groups: int
    tokens: int
    sampled_tokens: int
    masked_tokens: int
    padding_share: float
    reward_mean: float
    success_mean: float | None
    lag_mean: float
    lag_max: int
    in_flight_mean: float


def form_batch(
    groups: Sequence[TrajectoryGroup],
    advantage: AdvantageEstimator,
    *,
    batch: int,
    group_size: int,
    shape: tuple[int, int, int],
    normalize: Normalize | None = None,
    rewards: RewardsConfig = PLAIN_REWARDS,
    max_lag: int | None = None,
) -> tuple[TrainBatch, BatchStatistics]:
    """Compute each group's advantages and pack all trajectories into rows.

    Args:
      groups: >= 1 of them.
      advantage: called with NumPy arrays; `present` is false, and the reward 0, where a group
        has fewer than `group_size` members.
      batch: d, the batch's number, which is the version that it will be applied to.
      group_size: G, the most members of a group.
      shape: A, R, T of the batch, as in `pack`.
      normalize: what to do to the advantages of the whole batch, see `batch_scaled`.
      rewards: how rewards become credit.
      max_lag: K, versions, where older tokens are left out of the loss, though not of the rows;
        no advantage changes.

    Raises:
      ConfigError: where the trajectories do not fit into the batch's shape.
      ValueError: for no group, or one with no or more than `group_size` members.
    """
    if not groups:
        raise ValueError("a batch needs at least one group")
    credit = [
        group_credit(group, advantage, group_size=group_size, rewards=rewards) for group in groups
    ]
    if normalize is not None:
        credit = _normalized(credit, normalize)
    oldest = NO_VERSION if max_lag is None else batch - max_lag
    items = [
        _pack_item(sample, values, batch=batch, oldest=oldest, rewards=rewards)
        for group, members in zip(groups, credit, strict=True)
        for trajectory, advantages in zip(group.trajectories, members, strict=True)
        for sample, values in zip(
            trajectory.samples,
            token_credit(trajectory, advantages, rewards=rewards),
            strict=True,
        )
    ]
    microbatches, rows, row_tokens = shape
    packed = pack(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)
    useful = [sum(bool(each.any()) for each in members) for members in credit]
    return packed, _describe(groups, packed, batch=batch, oldest=oldest, useful=useful)


def _normalized(
    credit: Sequence[Sequence[Float32s]], normalize: Normalize
) -> list[list[Float32s]]:
    """Normalize the advantages of all groups' members over the whole batch."""
    each = [advantages for members in credit for advantages in members]
    together = np.asarray(normalize(np.concatenate(each)), np.float32)
    parts = iter(np.split(together, np.cumsum([len(advantages) for advantages in each])[:-1]))
    return [list(itertools.islice(parts, len(members))) for members in credit]


def _pack_item(
    sample: Trajectory,
    advantages: Float32s,
    *,
    batch: int,
    oldest: int,
    rewards: RewardsConfig,
) -> PackItem:
    counts = sample.loss_mask & (sample.policy_versions >= oldest)
    if rewards.mask_truncated and sample.stop_reason in _OUT_OF_TOKENS:
        counts = np.zeros_like(counts)
    return PackItem(
        tokens=sample.tokens,
        loss_mask=counts,
        rollout_logprobs=sample.rollout_logprobs,
        advantages=advantages,
        log_kept_mass=sample.log_kept_mass,
        lags=np.where(sample.loss_mask, batch - sample.policy_versions, 0).astype(np.int32),
        experts=sample.experts,
    )


def _describe(
    groups: Sequence[TrajectoryGroup],
    packed: TrainBatch,
    *,
    batch: int,
    oldest: int,
    useful: Sequence[int],
) -> BatchStatistics:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    known = any("success" in trajectory.info for trajectory in trajectories)
    successes = [t.info.get("success", 0.0) for t in trajectories] if known else []
    trained = [max(group.oldest_version, oldest) for group in groups]
    lags = [lag(version, batch) for version in trained]
    in_flight = [g.newest_version - first for g, first in zip(groups, trained, strict=True)]
    samples = [sample for trajectory in trajectories for sample in trajectory.samples]
    tokens = sum(len(sample.tokens) for sample in samples)
    sampled = sum(int(np.count_nonzero(sample.loss_mask)) for sample in samples)
    in_loss = int(packed.loss_mask.sum())
    _, rows, row_tokens = packed.tokens.shape
    return BatchStatistics(
        groups=len(groups),
        trajectories=len(trajectories),
        useful_trajectories=sum(useful),
        flat_groups=useful.count(0),
        tokens=tokens,
        sampled_tokens=in_loss,
        masked_tokens=sampled - in_loss,
        padding_share=1 - tokens / (int(packed.microbatches) * rows * row_tokens),
        reward_mean=statistics.fmean(trajectory.reward for trajectory in trajectories),
        success_mean=statistics.fmean(successes) if successes else None,
        lag_mean=statistics.fmean(lags),
        lag_max=max(lags),
        in_flight_mean=statistics.fmean(in_flight),
    )
