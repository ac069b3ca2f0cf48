"""Watches a run as time passes: why slots are idle, what the learner waits for, what was used.

Only looks. Each number is added up from what happens, at the moment when it happens.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ..groups.policy_version import lag
from ..stages import Update
from ..types import Trajectory
from .episodes import EpisodeBook
from .speeds import SamplerCosts


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
    """Adds up what the learner does between its updates, and of what they consist.

    Attributes:
      publish_seconds: of all publishes so far; whoever publishes counts them.
      padding_share: of the batch formed last.
    """

    now: Callable[[], float]
    starved_seconds: float = 0.0
    sync_seconds: float = 0.0
    padding_seconds: float = 0.0
    publish_seconds: float = 0.0
    padding_share: float = 0.0
    _idle_since: float = 0.0
    _published_then: float = 0.0

    def idle_ends(self) -> None:
        """Note that a batch was formed, or that the run is over."""
        publishing = self.publish_seconds - self._published_then
        self.sync_seconds += publishing
        self.starved_seconds += self.now() - self._idle_since - publishing

    def updated(self, seconds: float) -> None:
        """Note the end of an update that took so long."""
        self.padding_seconds += seconds * self.padding_share
        self._idle_since = self.now()
        self._published_then = self.publish_seconds


@dataclass
class UseWatch:
    """What was trained on: lags, and the least time that the same work needs.

    Attributes:
      lags: groups by lag in versions.
      groups: trained on.
      sampler_seconds: what the turns cost a sampler whose rows are always full.
      alone_seconds: what the episodes took if nobody had to queue or wait for others.
      longest_seconds: the longest of these.
    """

    costs: SamplerCosts
    full_rows: int
    most_lag: int
    lags: Counter[int] = field(default_factory=Counter)
    groups: int = 0
    sampler_seconds: float = 0.0
    alone_seconds: float = 0.0
    longest_seconds: float = 0.0

    def note(self, update: Update) -> None:
        """Count the groups of one update."""
        self.groups += len(update.groups)
        for group in update.groups:
            self.lags[min(lag(group.oldest_version, update.batch), self.most_lag)] += 1
            for trajectory in group.trajectories:
                self._note_trajectory(trajectory)

    def _note_trajectory(self, trajectory: Trajectory) -> None:
        alone = sum(turn.env_seconds for turn in trajectory.turns)
        if not self.costs.turns_are_free:
            alone += self._turns_seconds(trajectory, company=1)
            self.sampler_seconds += self._turns_seconds(trajectory, company=self.full_rows)
        self.alone_seconds += alone
        self.longest_seconds = max(self.longest_seconds, alone)

    def _turns_seconds(self, trajectory: Trajectory, *, company: int) -> float:
        seconds, cached = 0.0, 0
        for turn in trajectory.turns:
            seconds += (turn.start - cached) * self.costs.prefill_token_seconds
            tokens = turn.end - turn.start
            seconds += self.costs.turn_seconds(turn.start, tokens, company=company)
            cached = turn.end
        return seconds
