"""G episodes of one task. Law 6: a group is used whole or not at all, by a stated rule.

`retry` gives a failed member further tries and drops the group when they are used up;
`drop` drops it at the first failure; `survivors` uses those that are left, if enough are.
A group that can no longer be used stops its other members at once.
"""

import hashlib
import struct
from collections import Counter
from dataclasses import dataclass, field

import trio

from ...envs.base import Task
from ..types import EpisodeFailure, GroupOutcome, Trajectory, TrajectoryGroup
from .episode import EpisodeIdentity, Rollout, run_episode


def identify(seed: int, *, index: int, member: int, attempt: int = 0) -> EpisodeIdentity:
    """Give an episode its random keys.

    Law 18: they differ for distinct (seed, index, member, attempt), up to collisions of a
    128-bit hash, and depend on nothing else.

    Args:
      seed: the run's seed, 0..2**64 - 1, as all the others.
      index: the group's admission index.
      member: 0..G-1.
      attempt: how often this member failed before.

    Example:
      >>> a, b = identify(0, index=3, member=0), identify(0, index=3, member=1)
      >>> a.key != b.key and a.env_seed != b.env_seed
      True
    """
    place = struct.pack("<4Q", seed, index, member, attempt)
    digest = hashlib.blake2b(place, digest_size=16).digest()
    high, low, env_seed = struct.unpack("<IIQ", digest)
    return EpisodeIdentity((high, low), env_seed, priority=index)


@dataclass
class Flight:
    """What all groups of a run have in the air; counted by them, read by observers.

    Attributes:
      episodes: running now.
      trajectories: ended well so far, whatever became of their groups.
      failures: of all tries so far, those of cancelled groups included, by kind.
    """

    episodes: int = 0
    trajectories: int = 0
    failures: Counter[str] = field(default_factory=Counter)


async def run_group(
    rollout: Rollout, task: Task, *, index: int, seed: int, flight: Flight
) -> GroupOutcome:
    """Run all members of a group and judge the group by the config's failure policy.

    Args:
      index: the group's admission index.
      seed: the run's seed.
      flight: counts the group's episodes and failures.

    Returns:
      The usable group, or None in its place, and every failure on the way.
    """
    group = _Group(rollout, task, index, seed)
    async with trio.open_nursery() as nursery:
        for member in range(rollout.config.group_size):
            nursery.start_soon(group.run_member, member, nursery.cancel_scope, flight)
    return group.outcome()


class _Group:
    """The members' results so far."""

    def __init__(self, rollout: Rollout, task: Task, index: int, seed: int):
        self._rollout = rollout
        self._task = task
        self._index = index
        self._seed = seed
        self._trajectories: dict[int, Trajectory] = {}
        self._failures: list[EpisodeFailure] = []
        self._lost = 0

    async def run_member(self, member: int, group_scope: trio.CancelScope, flight: Flight) -> None:
        """Run one member, retries included; end the group's scope if the group is lost."""
        for attempt in range(self._tries):
            await trio.lowlevel.checkpoint_if_cancelled()  # no new try in a group that is lost
            identity = identify(self._seed, index=self._index, member=member, attempt=attempt)
            flight.episodes += 1
            try:
                outcome = await run_episode(self._rollout, self._task, identity)
            finally:
                flight.episodes -= 1
            if isinstance(outcome, Trajectory):
                self._trajectories[member] = outcome
                flight.trajectories += 1
                return
            self._failures.append(outcome)
            flight.failures[str(outcome.kind)] += 1
        self._lost += 1
        if not self._usable:
            group_scope.cancel()

    def outcome(self) -> GroupOutcome:
        group = None
        if self._usable:
            members = tuple(self._trajectories[member] for member in sorted(self._trajectories))
            group = TrajectoryGroup(self._index, self._task, members)
        return GroupOutcome(self._index, self._task, group, tuple(self._failures))

    @property
    def _tries(self) -> int:
        config = self._rollout.config
        return 1 + config.max_retries if config.failure == "retry" else 1

    @property
    def _usable(self) -> bool:
        config = self._rollout.config
        allowed = 0
        if config.failure == "survivors":
            allowed = config.group_size - config.min_group_size
        return self._lost <= allowed
