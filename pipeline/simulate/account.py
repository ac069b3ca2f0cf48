"""Where all device time went. Each part is timed where it happens, and together they make 1.

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

from collections.abc import Mapping
from dataclasses import asdict, dataclass

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
