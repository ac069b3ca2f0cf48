"""What each token of a group's trajectories is credited with.

Invariant: a group's credit depends on its own rewards only, and a trajectory's whole reward is
shared out: what its turns' rewards lack of it belongs to the last turn. NumPy only.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ..algorithms.advantages import AdvantageEstimator
from ..algorithms.config import RewardsConfig
from ..algorithms.returns import overlong_penalty, turn_returns
from ..types import Float32s, Trajectory, TrajectoryGroup

Compare = Callable[[Sequence[float | None]], Float32s]
"""From the members' rewards, None for one that has none, to their advantages, f32[members]."""


def group_credit(
    group: TrajectoryGroup,
    advantage: AdvantageEstimator,
    *,
    group_size: int,
    rewards: RewardsConfig,
) -> list[Float32s]:
    """Return each trajectory's advantages: one, or one of each turn of all its samples.

    With a critic, they are the turns' rewards.

    Args:
      advantage: called with NumPy arrays; `present` is false, and the reward 0, where a group has
        fewer than `group_size` members.

    Raises:
      ValueError: for a group with no or more than `group_size` members.
    """
    members = len(group.trajectories)
    if not 1 <= members <= group_size:
        raise ValueError(f"group {group.index} has {members} members, allowed are 1..{group_size}")

    def compare(values: Sequence[float | None]) -> Float32s:
        padded = np.zeros(group_size, np.float32)
        present = np.zeros(group_size, np.bool_)
        present[:members] = [value is not None for value in values]
        padded[:members] = [value or 0.0 for value in values]
        return np.asarray(advantage(padded, present), np.float32)[:members]

    if rewards.credit == "trajectory":
        totals = _separate_totals if rewards.separately else _totals
        weighted = [weight * compare(values) for weight, values in totals(group, rewards)]
        advantages = np.sum(np.asarray(weighted, np.float32), axis=0)
        return np.split(advantages, members)
    turns = [_turn_rewards(trajectory, rewards) for trajectory in group.trajectories]
    if rewards.credit == "critic":
        return turns
    if rewards.credit == "process":
        return [turn_returns(r, discount=rewards.discount) for r in _process(turns, advantage)]
    return _turn_by_turn([turn_returns(r, discount=rewards.discount) for r in turns], compare)


def token_credit(
    trajectory: Trajectory, advantages: Float32s, *, rewards: RewardsConfig
) -> list[Float32s]:
    """Spread a trajectory's advantages over the tokens of its samples: f32[T] of each.

    A turn's advantage goes to all its tokens; with a critic, its reward goes to its last one.
    """
    if rewards.credit == "trajectory":
        (value,) = advantages
        return [np.full(len(sample.tokens), value, np.float32) for sample in trajectory.samples]
    found = [np.zeros(len(sample.tokens), np.float32) for sample in trajectory.samples]
    spans = [
        (array, turn)
        for array, sample in zip(found, trajectory.samples, strict=True)
        for turn in sample.turns
    ]
    for (array, turn), value in zip(spans, advantages, strict=True):
        start = turn.end - 1 if rewards.credit == "critic" else turn.start
        array[start : turn.end] = value
    return found


_Weighted = tuple[float, list[float]]
"""A weight, and the members' values of a reward."""


def _totals(group: TrajectoryGroup, rewards: RewardsConfig) -> list[_Weighted]:
    return [(1.0, [each.reward + _penalty(each, rewards) for each in group.trajectories])]


def _separate_totals(group: TrajectoryGroup, rewards: RewardsConfig) -> list[_Weighted]:
    """List each named reward of all members, in an order that doesn't depend on the members.

    The penalty for length is one more reward, where there is one.
    """
    names = sorted({name for each in group.trajectories for name in each.rewards})
    weights = rewards.weight_of
    named = [
        (weights.get(name, 1.0), [each.rewards.get(name, 0.0) for each in group.trajectories])
        for name in names
    ]
    penalties = [_penalty(each, rewards) for each in group.trajectories]
    return [*named, (1.0, penalties)] if rewards.overlong_tokens else named


def _turn_rewards(trajectory: Trajectory, rewards: RewardsConfig) -> Float32s:
    turns = [turn for sample in trajectory.samples for turn in sample.turns]
    if not turns:
        raise ValueError("a trajectory without recorded turns has no credit of turns")
    own = np.array([turn.reward for turn in turns], np.float64)
    own[-1] += trajectory.reward + _penalty(trajectory, rewards) - own.sum()
    return own.astype(np.float32)


def _penalty(trajectory: Trajectory, rewards: RewardsConfig) -> float:
    if rewards.overlong_tokens == 0:
        return 0.0
    return overlong_penalty(
        sum(int(np.count_nonzero(sample.loss_mask)) for sample in trajectory.samples),
        limit=rewards.overlong_tokens,
        buffer=rewards.overlong_buffer_tokens,
        penalty=rewards.overlong_penalty,
    )


def _turn_by_turn(returns: Sequence[Float32s], compare: Compare) -> list[Float32s]:
    """Compare each turn's return with the same turn's of the members that have one."""
    longest = max(len(each) for each in returns)
    columns = [
        compare([float(each[turn]) if turn < len(each) else None for each in returns])
        for turn in range(longest)
    ]
    table = np.stack(columns, axis=1)
    return [row[: len(each)] for row, each in zip(table, returns, strict=True)]


def _process(turns: Sequence[Float32s], advantage: AdvantageEstimator) -> list[Float32s]:
    """Compare each turn's reward with those of all turns of all members.

    Reference: Shao et al. 2024, DeepSeekMath, section 4.1.3 (process supervision).
    """
    together = np.concatenate(turns)
    compared = np.asarray(advantage(together, np.ones(len(together), np.bool_)), np.float32)
    return np.split(compared, np.cumsum([len(each) for each in turns])[:-1])
