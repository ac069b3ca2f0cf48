"""Watches a run as time passes: why slots are idle, what the learner waits for, what was used.

Only looks. Each number is added up from what happens, at the moment when it happens.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..groups.policy_version import lag
from ..types import Trajectory, TrajectoryGroup
from .environment import announced_serial
from .episodes import EpisodeBook
from .speeds import SamplerCosts, Work, work_of


def _no_seconds() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass
class IdleWatch:
    """Adds up idle slots where every episode in flight holds one."""

    slots: int
    book: EpisodeBook
    why_idle: Callable[[], str]
    idle_seconds: defaultdict[str, float] = field(default_factory=_no_seconds)

    def advance(self, seconds: float) -> None:
        """Count an interval in which nothing changes."""
        idle = self.slots - self.book.in_flight
        if idle:
            self.idle_seconds[self.why_idle()] += idle * seconds


@dataclass
class LearnerWatch:
    """Adds up what the learner does, in seconds.

    Attributes:
      padding_share: of the tokens of the batch formed last.
      useful: updates, without what was spent on padding.
      evaluation: the end of the last evaluation is waited for, when all updates are made.
    """

    padding_share: float = 0.0
    useful: float = 0.0
    padding: float = 0.0
    starved: float = 0.0
    sync: float = 0.0
    evaluation: float = 0.0

    def updated(self, constant_seconds: float, token_seconds: float) -> None:
        """Note an update: its constant part, and what its tokens took, padding included."""
        padding = token_seconds * self.padding_share
        self.padding += padding
        self.useful += constant_seconds + token_seconds - padding

    def shares(self, elapsed_seconds: float) -> dict[str, float]:
        """Return the shares of the learner's time."""
        return {
            "useful": self.useful / elapsed_seconds,
            "padding": self.padding / elapsed_seconds,
            "starved": self.starved / elapsed_seconds,
            "sync": self.sync / elapsed_seconds,
            "evaluation": self.evaluation / elapsed_seconds,
        }


@dataclass
class UseWatch:
    """What was trained on: lags, and the least time that the same work needs.

    Attributes:
      most_lag: tokens of a larger lag were left out of the loss.
      lags: groups by lag in versions.
      groups: trained on.
      work: what the turns asked of the sampler, masked tokens left out.
      alone_seconds: what the episodes took if nobody had to queue or wait for others, the share
        of masked tokens left out.
      longest_seconds: the longest of these, as a whole.
    """

    costs: SamplerCosts
    most_lag: int
    lags: Counter[int] = field(default_factory=Counter)
    groups: int = 0
    work: Work = field(default_factory=Work)
    alone_seconds: float = 0.0
    longest_seconds: float = 0.0

    def note(self, group: TrajectoryGroup, batch: int) -> dict[int, float]:
        """Count a group of a batch; return its episodes' masked shares by serial number."""
        self.groups += 1
        self.lags[min(lag(group.oldest_version, batch), self.most_lag)] += 1
        masked = {}
        for trajectory in group.trajectories:
            share = masked_share(trajectory, batch - self.most_lag)
            masked[announced_serial(trajectory.tokens)] = share
            self._add(trajectory, 1 - share)
        return masked

    def _add(self, trajectory: Trajectory, share: float) -> None:
        work = work_of((turn.start, turn.end) for turn in trajectory.turns)
        env_seconds = sum(turn.env_seconds for turn in trajectory.turns)
        alone = env_seconds + self.costs.seconds(work)
        self.work = self.work.plus(work, share=share)
        self.alone_seconds += alone * share
        self.longest_seconds = max(self.longest_seconds, alone)


def masked_share(trajectory: Trajectory, oldest: int) -> float:
    """Return the share of the sampled tokens whose versions are older, 0..1."""
    if oldest <= 0:
        return 0.0
    versions = trajectory.policy_versions[trajectory.loss_mask]
    return float(np.mean(versions < oldest)) if versions.size else 0.0
