"""The rewards that compare a group's members: its episodes wait here for each other.

Invariant: a member's rewards come from one comparison of exactly those members that make the
group. A member that couldn't be scored is tried again, and compared with those that wait.
"""

from dataclasses import dataclass

import trio

from ...envs.base import RewardFailed, Task
from ...envs.rewards.scorer import Scorer
from ..types import EpisodeFailure, Outcome, Trajectory
from .boundary import failure_kind
from .scoring import record_of, with_rewards


@dataclass
class _Member:
    trajectory: Trajectory
    outcome: Outcome | None = None


class Comparison:
    """One group's; each member's task awaits `score`, or `leave` if it is lost."""

    def __init__(self, scorer: Scorer, task: Task, size: int):
        """Args:
        size: how many members will come.
        """
        self._scorer = scorer
        self._task = task
        self._expected = size
        self._waiting: dict[int, _Member] = {}
        self._changed = trio.Event()
        self._stopped = False
        self._scope = trio.CancelScope()  # of the comparison that runs

    async def score(self, member: int, trajectory: Trajectory) -> Outcome | None:
        """Wait for the other members; return the trajectory with its rewards, or a failure.

        Returns:
          None after `stop`.
        """
        own = self._waiting[member] = _Member(trajectory)
        await self._compare_if_complete()
        while own.outcome is None and not self._stopped:
            await self._changed.wait()
        return own.outcome

    async def leave(self) -> None:
        """Say that a member is lost; the others are compared without it."""
        self._expected -= 1
        await self._compare_if_complete()

    def stop(self) -> None:
        """End all waits."""
        self._stopped = True
        self._scope.cancel()
        self._tell()

    async def _compare_if_complete(self) -> None:
        if self._stopped or not self._waiting or len(self._waiting) < self._expected:
            return
        with trio.CancelScope() as self._scope:
            await self._compare()
        self._tell()

    async def _compare(self) -> None:
        members = sorted(self._waiting)
        waiting = [self._waiting[member] for member in members]
        records = [record_of(self._task, each.trajectory) for each in waiting]
        found = await self._scorer.compare(records)
        failed = any(isinstance(each, RewardFailed) for each in found)
        for member, own, rewards in zip(members, waiting, found, strict=True):
            if isinstance(rewards, RewardFailed):
                messages = own.trajectory.messages
                own.outcome = EpisodeFailure(failure_kind(rewards), str(rewards), messages)
                del self._waiting[member]
            elif not failed:
                own.outcome = with_rewards(own.trajectory, rewards, self._scorer)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
