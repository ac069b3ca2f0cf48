"""Where all device time went, and the least that it could have been.

Each part of the account is timed where it happens, and together they make 1.
Two pools of devices: generation, in slots (rows of the sampler; where rows are unlimited,
episodes that may be in flight), and the learner. Each counts by its share of the devices. No part
is what is left of the others, so a sum other than 1 would be a mistake:

  useful       generation: slots held by work that was trained on; learner: updates
  padding      learner: updates, by the share of padding among their tokens
  dropped      generation: slots held by work that was cancelled, failed or grew too old; of
               episodes with masked tokens, their share
  unfinished   generation: slots held by work in flight or ready when the run ended
  recompute    generation: prefilling again what had been computed before
  evaluation   generation: rows held by episodes that only measure the policy (where rows are
               unlimited, these run beside the slots); learner: waiting for the last one to end
  capped       generation: slots idle as the schedule admits no more groups
  memory       generation: slots idle while requests wait, as the cache is full
  waiting      generation: slots idle though groups may be admitted: those in flight wait for
               their environments, or for the last member of a group
  starved      learner: waiting for a batch
  sync         both: waiting for a publish
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from ..groups.policy_version import lag
from ..types import Trajectory, TrajectoryGroup, Turn
from .environment import announced_serial
from .speeds import SamplerCosts, Work, work_of

NAMES = (
    "useful", "starved", "capped", "sync", "dropped", "recompute", "padding", "evaluation",
    "waiting", "memory", "unfinished",
)  # fmt: skip
CAPPED, WAITING, MEMORY = "capped", "waiting", "memory"


@dataclass(frozen=True)
class Pools:
    """What each pool spent, as shares of its own time; each sums to 1.

    Attributes:
      sampler_share: the sampler's share of the devices, 0..1.
    """

    generation: Mapping[str, float]
    learner: Mapping[str, float]
    sampler_share: float

    def account(self) -> dict[str, float]:
        """Return the shares of all device time, by `NAMES`."""
        weights = (self.sampler_share, self.generation), (1 - self.sampler_share, self.learner)
        return {
            name: sum(weight * shares.get(name, 0.0) for weight, shares in weights)
            for name in NAMES
        }


@dataclass(frozen=True)
class Ideal:
    """The least virtual seconds in which the work that was used can be done, by what limits it.

    It is the ideal for the very episodes that were used: where long ones were dropped, these
    are shorter than others, and so is this time.

    Attributes:
      sampler: the turns, if the sampler's rows were always full, or as many of them as the
        cache has room for.
      environments: the episodes, if as many as may be in flight always were, and none queued.
      learner: the updates, one after the other and without padding.
      critical_path: the longest episode that was used.
    """

    sampler: float
    environments: float
    learner: float
    critical_path: float

    @property
    def bound(self) -> tuple[str, float]:
        """The name of the largest of them, and its seconds."""
        seconds = asdict(self)
        name = max(seconds, key=seconds.__getitem__)
        return name, seconds[name]

    @property
    def seconds(self) -> float:
        """The largest of them: no schedule can be faster."""
        return self.bound[1]


@dataclass(frozen=True)
class GenerationSeconds:
    """Slot seconds of the generation pool.

    Attributes:
      held: by what became of the work: useful, dropped, unfinished, evaluation.
      idle: by reason.
    """

    slots: int
    held: Mapping[str, float]
    idle: Mapping[str, float]
    recompute: float = 0.0
    sync: float = 0.0

    def shares(self, elapsed_seconds: float) -> dict[str, float]:
        """Return the shares of the pool's time."""
        parts = {**self.held, **self.idle, "recompute": self.recompute, "sync": self.sync}
        return {name: part / (self.slots * elapsed_seconds) for name, part in parts.items()}


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
    """What was trained on: lags, and, after `add_up`, the least time that the same work needs.

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
    _episodes: list[tuple[tuple[Turn, ...], float]] = field(default_factory=list)

    def note(self, group: TrajectoryGroup, batch: int) -> dict[int, float]:
        """Count a group of a batch; return its episodes' masked shares by serial number."""
        self.groups += 1
        self.lags[min(lag(group.oldest_version, batch), self.most_lag)] += 1
        masked, most = {}, self.most_lag
        for trajectory in group.trajectories:
            share = masked_share(trajectory, batch - most) if batch > most else 0.0
            masked[announced_serial(trajectory.tokens)] = share
            self._episodes.append((trajectory.turns, 1 - share))
        return masked

    def add_up(self) -> None:
        """Compute the work and the seconds: after the run, so as not to count as its host time."""
        for turns, share in self._episodes:
            self._add(turns, share)
        self._episodes.clear()

    def _add(self, turns: Sequence[Turn], share: float) -> None:
        work = work_of((turn.start, turn.end) for turn in turns)
        env_seconds = sum(turn.env_seconds for turn in turns)
        alone = env_seconds + self.costs.seconds(work)
        self.work = self.work.plus(work, share=share)
        self.alone_seconds += alone * share
        self.longest_seconds = max(self.longest_seconds, alone)


def masked_share(trajectory: Trajectory, oldest: int) -> float:
    """Return the share of the sampled tokens whose versions are older, 0..1."""
    versions = trajectory.policy_versions[trajectory.loss_mask]
    return float(np.mean(versions < oldest)) if versions.size else 0.0
