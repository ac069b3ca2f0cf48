"""Whole groups become one packed batch with advantages.

A group's advantages depend on its own rewards only, so neither the batch's other groups nor the
packing changes them; every token of every group is in the batch exactly once. The samples of one
episode are sequences of their own with the episode's advantage.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..algorithms.advantages import AdvantageEstimator, batch_scale
from ..types import NO_VERSION, Float32s, TrainBatch, Trajectory, TrajectoryGroup
from .packing import PackItem, microbatches_needed, pack
from .policy_version import lag

__all__ = [
    "BatchStatistics",
    "PackItem",
    "form_batch",
    "microbatches_needed",
    "pack",
]


@dataclass(frozen=True)
class BatchStatistics:
    """What is in one batch. Means are over trajectories, those of lags over groups.

    Attributes:
      useful_trajectories: those with an advantage other than 0.
      tokens: all tokens, prompts and observations included.
      sampled_tokens: those in the loss.
      masked_tokens: those that were sampled too, but are too old for the loss.
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
    normalize_batch: bool = False,
    max_lag: int | None = None,
) -> tuple[TrainBatch, BatchStatistics]:
    """Compute each group's advantages and pack all trajectories into rows.

    Args:
      groups: >= 1 of them.
      advantage: called once a group with NumPy arrays; `present` is false, and the reward 0,
        where a group has fewer than `group_size` members.
      batch: d, the batch's number, which is the version that it will be applied to.
      group_size: G, the most members of a group.
      shape: A, R, T of the batch, as in `pack`.
      normalize_batch: divide all advantages by the batch's spread, see `batch_scale`.
      max_lag: K, versions, where older tokens are left out of the loss, though not of the rows;
        no advantage changes.

    Raises:
      ConfigError: where the trajectories do not fit into the batch's shape.
      ValueError: for no group, or one with no or more than `group_size` members.
    """
    if not groups:
        raise ValueError("a batch needs at least one group")
    advantages = [group_advantages(group, advantage, group_size=group_size) for group in groups]
    scale = batch_scale(np.concatenate(advantages)) if normalize_batch else 1.0
    oldest = NO_VERSION if max_lag is None else batch - max_lag
    items = [
        _pack_item(sample, value / scale, oldest=oldest)
        for group, values in zip(groups, advantages, strict=True)
        for trajectory, value in zip(group.trajectories, values, strict=True)
        for sample in trajectory.samples
    ]
    microbatches, rows, row_tokens = shape
    packed = pack(items, microbatches=microbatches, rows=rows, row_tokens=row_tokens)
    useful = sum(int(np.count_nonzero(values)) for values in advantages)
    return packed, _describe(groups, packed, batch=batch, oldest=oldest, useful=useful)


def group_advantages(
    group: TrajectoryGroup, advantage: AdvantageEstimator, *, group_size: int
) -> Float32s:
    """Return the advantages of the group's trajectories, f32[members], members <= G."""
    members = len(group.trajectories)
    if not 1 <= members <= group_size:
        raise ValueError(f"group {group.index} has {members} members, allowed are 1..{group_size}")
    rewards = np.zeros(group_size, np.float32)
    rewards[:members] = [trajectory.reward for trajectory in group.trajectories]
    present = np.arange(group_size) < members
    return np.asarray(advantage(rewards, present), np.float32)[:members]


def _pack_item(trajectory: Trajectory, advantage: float, *, oldest: int) -> PackItem:
    return PackItem(
        tokens=trajectory.tokens,
        loss_mask=trajectory.loss_mask & (trajectory.policy_versions >= oldest),
        rollout_logprobs=trajectory.rollout_logprobs,
        advantages=np.full(len(trajectory.tokens), advantage, np.float32),
    )


def _describe(
    groups: Sequence[TrajectoryGroup], packed: TrainBatch, *, batch: int, oldest: int, useful: int
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
        useful_trajectories=useful,
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
