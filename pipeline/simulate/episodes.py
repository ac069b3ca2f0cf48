"""Who is in flight, how long each episode held a slot, and what became of its work.

Invariant: every second that an episode held a generation slot ends up in exactly one fate:
useful (its group trained the policy), dropped (cancelled, failed, or its group was), unfinished
(in flight or ready when the run ended), or evaluation. Each is added up on its own, from the
episodes themselves, and none is a remainder.
"""

import enum
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field


class Fate(enum.Enum):
    """What became of an episode's work."""

    USEFUL = "useful"
    DROPPED = "dropped"
    UNFINISHED = "unfinished"
    EVALUATION = "evaluation"


@dataclass(slots=True, eq=False)
class Episode:
    """One try of one member of a group.

    Attributes:
      serial: tells it from all others; it travels in the prompt.
      began: virtual seconds.
      group: the admission index of its group, known from its first turn on; negative for an
        episode of an evaluation.
      planned_seconds: how long it would take, alone and to its end.
      slot_seconds: how long it held a generation slot, so far.
      waiting: for the policy or its environment. Who is closed like that was cancelled or broke.
    """

    serial: int
    began: float
    group: int = 0
    planned_seconds: float = 0.0
    slot_seconds: float = 0.0
    waiting: bool = False
    fate: Fate | None = None


@dataclass
class Lengths:
    """Planned length and slot seconds of every episode whose work was used or dropped."""

    planned: "array[float]" = field(default_factory=lambda: array("d"))
    useful: "array[float]" = field(default_factory=lambda: array("d"))
    dropped: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, episode: Episode, *, dropped: bool) -> None:
        """Note one episode."""
        self.planned.append(episode.planned_seconds)
        self.useful.append(0.0 if dropped else episode.slot_seconds)
        self.dropped.append(episode.slot_seconds if dropped else 0.0)


class EpisodeBook:
    """Keeps the episodes of a run. The environments report to it, and so does `run`.

    Attributes:
      seconds: slot seconds by fate.
      lengths: of the episodes whose fate is known.
      started: episodes ever started.
      in_flight_max: the most at one time.
      turns: turns of the policy asked for.
    """

    def __init__(
        self, now: Callable[[], float], *, slot_is_row: bool, run_ended: Callable[[], bool]
    ):
        """Args:
        now: virtual seconds.
        slot_is_row: a slot is a row of the sampler, reported by `spend`; otherwise every
          episode holds one for its whole life.
        run_ended: whether the last update is made, so that what stops now is unfinished.
        """
        self.seconds = dict.fromkeys(Fate, 0.0)
        self.lengths = Lengths()
        self.started = 0
        self.in_flight_max = 0
        self.turns = 0
        self._now = now
        self._slot_is_row = slot_is_row
        self._run_ended = run_ended
        self._open: dict[int, Episode] = {}
        self._evaluating = 0
        self._ended: dict[int, list[Episode]] = {}

    @property
    def in_flight(self) -> int:
        """Episodes of groups now running; those of an evaluation run beside them."""
        return len(self._open) - self._evaluating

    def open(self) -> Episode:
        """Start an episode."""
        episode = Episode(self.started, self._now())
        self.started += 1
        self._open[episode.serial] = episode
        return episode

    def ask(self, serial: int, group: int) -> Episode:
        """Note that the policy is asked for a turn of an episode; return the episode."""
        self.turns += 1
        episode = self._open[serial]
        self._evaluating += group < 0 <= episode.group
        episode.group = group
        episode.waiting = True
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        return episode

    def spend(self, episode: Episode, seconds: float) -> None:
        """Add slot seconds to an episode, perhaps after its end."""
        episode.slot_seconds += seconds
        if episode.fate is not None:
            self.seconds[episode.fate] += seconds

    def close(self, episode: Episode) -> None:
        """End an episode: it ended well, or it was stopped or broke while it waited."""
        del self._open[episode.serial]
        if episode.group < 0:
            self._evaluating -= 1
            self._decide(episode, Fate.EVALUATION)
            return
        if not self._slot_is_row:
            episode.slot_seconds = self._now() - episode.began
        if not episode.waiting:
            self._ended.setdefault(episode.group, []).append(episode)
        else:
            self._decide(episode, Fate.UNFINISHED if self._run_ended() else Fate.DROPPED)

    def use(self, group: int) -> None:
        """Note that a group was trained on."""
        for episode in self._ended.pop(group):
            self._decide(episode, Fate.USEFUL)

    def end(self, outstanding: Collection[int], *, first_later: int) -> None:
        """Decide about the episodes that ended well and were not used.

        Args:
          outstanding: the indexes of the groups that might still have been used.
          first_later: groups from this index on might have been, too.
        """
        for group, episodes in self._ended.items():
            might = group in outstanding or group >= first_later
            for episode in episodes:
                self._decide(episode, Fate.UNFINISHED if might else Fate.DROPPED)
        self._ended.clear()

    def _decide(self, episode: Episode, fate: Fate) -> None:
        episode.fate = fate
        self.seconds[fate] += episode.slot_seconds
        if fate in (Fate.USEFUL, Fate.DROPPED):
            self.lengths.add(episode, dropped=fate is Fate.DROPPED)
