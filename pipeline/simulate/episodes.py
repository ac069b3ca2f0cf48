"""Who is in flight, how long each episode held a slot, and what became of its work.

Invariant: every second that an episode held a generation slot ends up in exactly one fate:
useful (its group trained the policy), dropped (cancelled, failed, or its group was, or the part
of a used episode that was too old for the loss), unfinished
(in flight or ready when the run ended), or evaluation. Each is added up on its own, from the
episodes themselves, and none is a remainder.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ..rollout.config import RolloutConfig
from .speeds import SamplerCosts, work_of
from .workload import Course


class Fate(enum.StrEnum):
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
      course: what it does, once that is known.
      planned_seconds: how long it would take, alone and to its end; known after the run.
      slot_seconds: how long it held a generation slot, so far; a row may be given back after
        the episode's end.
      masked_share: of its sampled tokens, those that grew too old for the loss, 0..1.
      waiting: for the policy or its environment. Who is closed like that was cancelled or broke.
    """

    serial: int
    began: float
    group: int = 0
    course: Course | None = None
    planned_seconds: float = 0.0
    slot_seconds: float = 0.0
    masked_share: float = 0.0
    waiting: bool = False
    fate: Fate | None = None


def seconds_alone(course: Course, rollout: RolloutConfig, costs: SamplerCosts) -> float:
    """Return how long an episode takes that is alone and runs to its end.

    Its end is that of its course, or where the first limit of the rollout cuts it short.

    Example:
      >>> course = Course(10, [4, 4, 4], [1, 1, 1], [1.0, 1.0, 1.0])
      >>> costs = SamplerCosts(dispatch_seconds=0.5)
      >>> seconds_alone(course, RolloutConfig(), costs)
      9.0
      >>> seconds_alone(course, RolloutConfig(max_tokens=18), costs)  # 7 tokens, one answer
      4.5
    """
    turns, env_seconds, start = [], 0.0, course.prompt_tokens
    for turn in range(min(len(course.sampled_tokens), rollout.max_turns)):
        wanted = start + course.sampled_tokens[turn]
        end = min(wanted, start + rollout.max_turn_tokens, rollout.max_tokens)
        turns.append((start, end))
        if end < wanted:
            break
        env_seconds += course.latency_seconds[turn]
        start = end + course.observed_tokens[turn]
        if start >= rollout.max_tokens:
            break
    return env_seconds + costs.seconds(work_of(turns))


def slot_seconds(episodes: Iterable[Episode]) -> dict[Fate, float]:
    """Return the slot seconds of episodes whose fate is known, by fate.

    The share of a used episode's time that its masked tokens took is dropped work.
    """
    seconds = dict.fromkeys(Fate, 0.0)
    for episode in episodes:
        assert episode.fate is not None
        dropped = episode.slot_seconds * episode.masked_share
        seconds[episode.fate] += episode.slot_seconds - dropped
        seconds[Fate.DROPPED] += dropped
    return seconds


class EpisodeBook:
    """Keeps the episodes of a run. The environments report to it, and so does `run`.

    Attributes:
      decided: the episodes whose fate is known.
      started: episodes ever started.
      in_flight: episodes of groups now running; those of an evaluation run beside them.
      in_flight_max: the most at one time.
      turns: turns of the policy asked for.
    """

    def __init__(
        self, now: Callable[[], float], *, slot_is_row: bool, run_ended: Callable[[], bool]
    ):
        """Args:
        now: virtual seconds.
        slot_is_row: a slot is a row of the sampler, reported by `add_slot_seconds`; otherwise
          every episode of training holds one for its whole life, and those of evaluations none.
        run_ended: whether the last update is made, so that what stops now is unfinished.
        """
        self.decided: list[Episode] = []
        self.started = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.turns = 0
        self._now = now
        self._slot_is_row = slot_is_row
        self._run_ended = run_ended
        self._open: dict[int, Episode] = {}
        self._ended: dict[int, list[Episode]] = {}

    def open(self) -> Episode:
        """Start an episode."""
        serial = self.started
        episode = self._open[serial] = Episode(serial, self._now())
        self.started += 1
        self.in_flight += 1
        return episode

    def turn_asked(self, serial: int, group: int) -> Episode:
        """Note that the policy is asked for a turn of an episode; return the episode."""
        self.turns += 1
        episode = self._open[serial]
        if group < 0 <= episode.group:
            self.in_flight -= 1
        episode.group = group
        episode.waiting = True
        if self.in_flight > self.in_flight_max:
            self.in_flight_max = self.in_flight
        return episode

    def add_slot_seconds(self, episode: Episode, seconds: float) -> None:
        """Add slot seconds to an episode, perhaps after its end."""
        episode.slot_seconds += seconds

    def close(self, episode: Episode) -> None:
        """End an episode: it ended well, or it was stopped or broke while it waited."""
        del self._open[episode.serial]
        if episode.group < 0:
            self._decide(episode, Fate.EVALUATION)
            return
        self.in_flight -= 1
        if not self._slot_is_row:
            episode.slot_seconds = self._now() - episode.began
        if not episode.waiting:
            self._ended.setdefault(episode.group, []).append(episode)
        else:
            self._decide(episode, Fate.UNFINISHED if self._run_ended() else Fate.DROPPED)

    def use(self, group: int, masked_shares: Mapping[int, float]) -> None:
        """Note that a group was trained on.

        Args:
          masked_shares: of the episodes that were used, by their serial numbers, see `Episode`.
            One that isn't among them met a deadline just when it ended.
        """
        for episode in self._ended.pop(group):
            is_used = episode.serial in masked_shares
            episode.masked_share = masked_shares.get(episode.serial, 0.0)
            self._decide(episode, Fate.USEFUL if is_used else Fate.DROPPED)

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

    def plan(self, rollout: RolloutConfig, costs: SamplerCosts) -> None:
        """Compute how long the decided episodes would have taken alone."""
        for episode in self.decided:
            if episode.course is not None:
                episode.planned_seconds = seconds_alone(episode.course, rollout, costs)

    def _decide(self, episode: Episode, fate: Fate) -> None:
        episode.fate = fate
        self.decided.append(episode)
