"""Where all device time went. Each part is measured on its own, and together they make 1.

Two pools of devices: generation, in slots (rows of the sampler; where rows are unlimited,
episodes that may be in flight), and the learner. Each counts by its share of the devices. As none
of the parts is taken as the rest of the others, a sum other than 1 would be a mistake:

  useful       generation: slots held by work that was trained on; learner: updates
  padding      learner: the part of updates spent on padding
  dropped      generation: slots held by work that was cancelled, failed or grew too old
  unfinished   generation: slots held by work in flight or ready when the run ended
  recompute    generation: prefilling again what had been computed before
  evaluation   generation: slots held by episodes that only measure the policy
  capped       generation: slots idle as the schedule admits no more groups
  memory       generation: slots idle while requests wait, as the cache is full
  waiting      generation: slots idle though groups may be admitted: those in flight wait for
               their environments, or for the last member of a group
  starved      learner: waiting for a batch
  sync         both: waiting for a publish
"""

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class LearnerSeconds:
    """Seconds of the learner. `updates` includes padding."""

    updates: float
    padding: float
    starved: float
    sync: float

    def shares(self, elapsed_seconds: float) -> dict[str, float]:
        """Return the shares of the pool's time."""
        parts = {
            "useful": self.updates - self.padding,
            "padding": self.padding,
            "starved": self.starved,
            "sync": self.sync,
        }
        return {name: part / elapsed_seconds for name, part in parts.items()}
