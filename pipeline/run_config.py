"""What every run has, whatever it learns from."""

import re
import signal
from dataclasses import dataclass
from typing import Any

from .errors import check


@dataclass(frozen=True)
class CommonRunConfig:
    """What is asked of a run as a whole.

    Raises:
      ConfigError: for impossible numbers, and names that can't be a folder's.
    """

    name: str = "custom"
    """The run's name, for the run directory and the summary."""
    dir: str | None = None
    """The run directory; must not hold a run yet. Default: runs/<name>-<time>."""
    steps: int = 0
    """Updates of the learner; 0 without rollouts: as many as data.epochs take."""
    seed: int = 0
    """Decides the parameters that are drawn, the order of the data, and all random keys."""
    compilation_cache: str | None = None
    """A folder where compiled programs are kept, so that the next start is faster."""
    save_policy: bool = True
    """Keep the final policy in the run directory; adapters are merged into their base."""

    def __post_init__(self) -> None:
        for name in ("steps", "seed"):
            value = getattr(self, name)
            check(0 <= value < 2**63, f"run.{name}", value, "in 0..2**63 - 1")
        is_plain = re.fullmatch(r"[A-Za-z0-9_.-]+", self.name) is not None
        hint = "set --run.name, or name under [run] in the settings' file"
        check(is_plain, "run.name", self.name, "letters, digits, '_', '.' and '-'", hint=hint)
        for name in ("dir", "compilation_cache"):
            check(getattr(self, name) != "", f"run.{name}", "", "the path of a folder")

    def identity(self, *, steps: int, interrupted_by: signal.Signals | None) -> dict[str, Any]:
        """Give what every summary begins with."""
        return {
            "recipe": self.name,
            "steps": steps,
            "seed": self.seed,
            "interrupted_by": interrupted_by and interrupted_by.name,
        }


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run saves what it needs to go on."""

    every: int = 100
    """Updates between two checkpoints; another is made when the run ends, by a signal as well. 0:
    none are made."""
    keep: int = 1
    """The newest ones that are kept."""

    def __post_init__(self) -> None:
        check(self.every >= 0, "checkpoint.every", self.every, ">= 0")
        check(self.keep >= 1, "checkpoint.keep", self.keep, ">= 1")
