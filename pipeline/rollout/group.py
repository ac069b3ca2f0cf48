"""G episodes of one task, and what all groups of a run have in the air.

Which members are tried again, and whether a group is used, is the ledger's business (law 6):
a group here only runs members, keeps their trajectories and can be stopped.
"""

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Self

import trio

from ...envs.base import Task
from ..types import EpisodeFailure, FailureKind, Outcome, Trajectory, TrajectoryGroup
from .comparison import Comparison
from .episode import Episode, EpisodeIdentity, Rollout

_PLACE, _KEYS = struct.Struct("<4Q"), struct.Struct("<IIQ")

Conclude = Callable[[int, int, int, Outcome], bool]


def identify(
    seed: int, *, index: int, member: int, attempt: int = 0, version: int | None = None
) -> EpisodeIdentity:
    """Give an episode its random keys.

    Law 18: they differ for distinct (seed, index, member, attempt), up to collisions of a
    128-bit hash, and depend on nothing else.

    Args:
      seed: the run's seed, 0..2**64 - 1, as all the others.
      index: the group's admission index.
      member: 0..G-1.
      attempt: how often this member failed before.
      version: the policy version that samples the episode; None follows the newest.

    Example:
      >>> a, b = identify(0, index=3, member=0), identify(0, index=3, member=1)
      >>> a.key != b.key and a.env_seed != b.env_seed
      True
    """
    place = _PLACE.pack(seed, index, member, attempt)
    digest = hashlib.blake2b(place, digest_size=16).digest()
    high, low, env_seed = _KEYS.unpack(digest)
    name = f"{index}.{member} try {attempt + 1}" if attempt else f"{index}.{member}"
    return EpisodeIdentity((high, low), env_seed, index, version, name)


@dataclass
class Flight:
    """The episodes in the air, and counts of those that ended; read by observers.

    Attributes:
      running: in the order in which they began.
      trajectories: ended well so far, whatever became of their groups.
      turns: in those trajectories.
      failures: of all tries so far, by kind; stopping an episode is none.
    """

    running: dict[Episode, None] = field(default_factory=dict)
    trajectories: int = 0
    turns: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def episodes(self) -> int:
        """How many run now."""
        return len(self.running)

    @property
    def ended(self) -> dict[str, Any]:
        """The counts of those that ended, as JSON; see `after`."""
        counts = {"trajectories": self.trajectories, "turns": self.turns}
        return {**counts, "failures": dict(self.failures)}

    @classmethod
    def after(cls, ended: Mapping[str, Any]) -> Self:
        """Begin with counts of earlier ones."""
        return cls(**{**ended, "failures": Counter(ended["failures"])})

    @property
    def moved(self) -> float:
        """When an episode last began a call, in seconds of trio's clock; 0 if none runs."""
        return max((episode.since for episode in self.running), default=0.0)

    def describe(self, now: float, *, most: int) -> list[str]:
        """Say what the episodes wait for, the longest waits first."""
        longest = sorted(self.running, key=attrgetter("since"))
        more = len(longest) - most
        lines = [episode.describe(now) for episode in longest[:most]]
        return lines + [f"and {more} more episodes"] * (more > 0)

    async def run(self, episode: Episode) -> Outcome:
        """Run one episode and count it."""
        self.running[episode] = None
        try:
            outcome = await episode.run()
            if isinstance(outcome, EpisodeFailure):
                # An environment may answer the cancellation of a run with an error.
                await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            del self.running[episode]
        if isinstance(outcome, Trajectory):
            self.trajectories += 1
            self.turns += len(outcome.turns)
            for sample in outcome.earlier:
                self.turns += len(sample.turns)
        elif outcome.kind is not FailureKind.CANCELLED:
            self.failures[str(outcome.kind)] += 1
        return outcome


class Group:
    """One admitted group: await `run_member` once for each member."""

    def __init__(self, rollout: Rollout, task: Task, index: int, version: int | None):
        """Args:
        index: the admission index.
        version: the policy version that samples all members; None follows the newest.
        """
        self.task = task
        self.index = index
        self._rollout = rollout
        self._version = version
        self._stopped: str | None = None
        self._running: dict[int, Episode] = {}
        self._trajectories: dict[int, Trajectory] = {}
        scorer, size = rollout.scorer, rollout.config.group_size
        compares = scorer is not None and scorer.compares
        self._comparison = Comparison(scorer, task, size) if scorer and compares else None

    async def run_member(
        self, member: int, *, seed: int, flight: Flight, conclude: Conclude
    ) -> None:
        """Run one member, again as long as `conclude(index, member, attempt, outcome)` says so.

        Args:
          seed: the run's seed.
          conclude: is told of each outcome, but of none that `stop` brought about.
        """
        attempt = 0
        while self._stopped is None:
            # An environment that fails at once would never let a cancellation in.
            await trio.lowlevel.checkpoint_if_cancelled()
            identity = identify(
                seed, index=self.index, member=member, attempt=attempt, version=self._version
            )
            episode = Episode(self._rollout, self.task, identity)
            self._running[member] = episode
            outcome = await flight.run(episode)
            del self._running[member]
            if self._comparison is not None and isinstance(outcome, Trajectory):
                compared = await self._compared(self._comparison, member, outcome, flight)
                if compared is None:
                    return
                outcome = compared
            if isinstance(outcome, Trajectory):
                self._trajectories[member] = outcome
            elif outcome.kind is FailureKind.CANCELLED:
                return
            if not conclude(self.index, member, attempt, outcome):
                if self._comparison is not None and isinstance(outcome, EpisodeFailure):
                    await self._comparison.leave()
                return
            attempt += 1

    async def _compared(
        self, comparison: Comparison, member: int, trajectory: Trajectory, flight: Flight
    ) -> Outcome | None:
        """Add the rewards that compare the members; None if the group was stopped meanwhile."""
        if self._stopped is not None:
            return None
        outcome = await comparison.score(member, trajectory)
        if isinstance(outcome, EpisodeFailure):
            flight.failures[str(outcome.kind)] += 1
        return outcome

    def stop(self, reason: str) -> None:
        """End all members that run, and start no more."""
        self._stopped = reason
        for episode in self._running.values():
            episode.stop(reason)
        if self._comparison is not None:
            self._comparison.stop()

    def collect(self, members: Sequence[int]) -> TrajectoryGroup:
        """Return these members' trajectories, all of which must have ended well."""
        trajectories = tuple([self._trajectories[member] for member in members])
        return TrajectoryGroup(self.index, self.task, trajectories)
