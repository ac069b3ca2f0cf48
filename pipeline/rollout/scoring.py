"""The rewards of an episode that has ended, beside what its environment gave.

Invariant: a trajectory has all rewards of its run or it is an `EpisodeFailure`; the rewards of
its turns are the environment's, weighted like its sum.
"""

from dataclasses import replace

from ...envs.base import Task
from ...envs.rewards.record import EpisodeRecord
from ...envs.rewards.reward import ENV
from ...envs.rewards.scorer import Rewards, Scorer
from ..types import Trajectory, Turn


def record_of(task: Task, trajectory: Trajectory) -> EpisodeRecord:
    """Return what a reward function sees of an episode."""
    sampled = sum(int(sample.loss_mask.sum()) for sample in trajectory.samples)
    return EpisodeRecord(
        task,
        trajectory.messages,
        stop_reason=str(trajectory.stop_reason),
        sampled_tokens=sampled,
        env_reward=trajectory.rewards[ENV],
        info=trajectory.info,
    )


def with_rewards(trajectory: Trajectory, found: Rewards, scorer: Scorer) -> Trajectory:
    """Return the trajectory with more rewards, in all of its samples."""
    rewards = {**trajectory.rewards, **found}
    total = scorer.total(rewards)
    earlier = tuple(
        [replace(sample, rewards=rewards, reward=total) for sample in trajectory.earlier]
    )
    return replace(trajectory, rewards=rewards, reward=total, earlier=earlier)


def weighted_turns(trajectory: Trajectory, weight: float) -> Trajectory:
    """Weight what the environment gave for each turn."""
    if weight == 1.0:
        return trajectory
    earlier = tuple([_weighted(sample, weight) for sample in trajectory.earlier])
    return replace(_weighted(trajectory, weight), earlier=earlier)


def _weighted(sample: Trajectory, weight: float) -> Trajectory:
    turns = [Turn(*turn[:4], reward=weight * turn.reward) for turn in sample.turns]
    return replace(sample, turns=tuple(turns))
