"""How far a run without rollouts has come, and whether another start may go on from there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import ConfigError, check, describe
from ..tables import from_table
from .config import RECIPES, OfflineRecipe
from .sources import sha256_of

# What may change between two processes of a run: nothing that is learnt depends on it, beyond
# rounding. A file of rows is told by its digest, not by its path.
_FREE_SECTIONS = ("checkpoint", "evaluate", "mesh", "waits")
_FREE = (
    "data.path",
    "data.eval",
    "data.too_long",
    "data.unusable",
    "run.compilation_cache",
    "run.save_policy",
)


@dataclass(frozen=True)
class Progress:
    """The totals of a run, over all its processes.

    Attributes:
      updates: taken so far.
      rows: that were learnt from.
      rows_skipped: that were too long or otherwise not usable.
      tokens: that a loss was on.
      loss_first: of the first update.
      loss_last: of the last one.
      evaluated: after how many updates the held-out rows were last measured; -1: never.
      evaluations: by "before" and "after", what was measured.
      wall_seconds: of processes that have ended, up to the checkpoint that the next went on from.
      resumed_from: after how many updates each further process went on.
    """

    updates: int = 0
    rows: int = 0
    rows_skipped: int = 0
    tokens: int = 0
    loss_first: float | None = None
    loss_last: float | None = None
    evaluated: int = -1
    evaluations: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    wall_seconds: float = 0.0
    resumed_from: tuple[int, ...] = ()

    def updated(self, numbers: Mapping[str, float], rows: int, skipped: int) -> "Progress":
        """Count an update.

        Args:
          numbers: its metrics.
        """
        loss = numbers["loss"]
        return replace(
            self,
            updates=self.updates + 1,
            rows=self.rows + rows,
            rows_skipped=self.rows_skipped + skipped,
            tokens=self.tokens + int(numbers["tokens"]),
            loss_first=loss if self.updates == 0 else self.loss_first,
            loss_last=loss,
        )

    def evaluated_by(self, found: Mapping[str, float]) -> "Progress":
        """Note what was measured on the held-out rows."""
        when = "after" if self.updates else "before"
        evaluations = {**self.evaluations, when: found}
        return replace(self, evaluated=self.updates, evaluations=evaluations)

    def summary(self) -> dict[str, Any]:
        """Give what a summary says of them."""
        table = asdict(self)
        del table["evaluated"]
        return table


@dataclass(frozen=True)
class Saved:
    """The record beside the learner's state in a checkpoint; plain JSON as a table.

    Attributes:
      command: sft, prefer or distill.
      settings: the recipe's.
      data_sha256: of the file of rows.
      fixed_sha256: see `OfflineLearner.fixed_sha256`.
      position: in the rows, see `Cursor.state`.
      metrics_bytes: how much had been written of the metrics.
      progress: at that time.
    """

    command: str
    settings: Mapping[str, Any]
    data_sha256: str
    fixed_sha256: str
    position: Mapping[str, Any]
    metrics_bytes: int
    progress: Progress

    def table(self) -> dict[str, Any]:
        """Return the record as JSON has it."""
        return asdict(self)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "Saved":
        """Read a record, to go on from it.

        Raises:
          ConfigError: where it isn't one of a run without rollouts.
        """
        try:
            from_table(RECIPES[table["command"]], table["settings"])
            progress = Progress(**table["progress"])
            resumed_from = (*progress.resumed_from, progress.updates)
            progress = replace(progress, resumed_from=resumed_from)
            return Saved(**{**table, "progress": progress})
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"its record is not whole: {describe(error)}") from error

    def check_settings(self, recipe: OfflineRecipe) -> None:
        """Refuse to go on with settings that would teach something else.

        Raises:
          ConfigError: with the settings that have changed.
        """
        before = from_table(RECIPES[self.command], self.settings)
        old, new = _flat(asdict(before)), _flat(asdict(recipe))
        changed = [name for name in new if old[name] != new[name] and not _is_free(name, recipe)]
        if changed:
            listed = ", ".join(f"{name} was {old[name]!r}, is {new[name]!r}" for name in changed)
            raise ConfigError(
                f"a run goes on with the settings that it began with, but {listed}; leave them, "
                "or start a new run from this one's policy: --policy and the run directory"
            )

    def check_data(self, path: str) -> None:
        """Refuse to go on with other rows.

        Raises:
          ConfigError: where the file isn't the one that the run began with.
        """
        sha256 = sha256_of(path)
        if sha256 != self.data_sha256:
            raise ConfigError(
                f"{path} isn't the file that this run began with: its SHA-256 was "
                f"{self.data_sha256[:16]}…, is {sha256[:16]}…; put the old one back or name it "
                "with --data.path, or start a new run from this one's policy: --policy and the "
                "run directory"
            )

    def check_steps(self, steps: int) -> None:
        """Refuse to go on to fewer updates than were taken.

        Raises:
          ConfigError: in this case.
        """
        done = self.progress.updates
        check(steps >= done, "run.steps", steps, f">= {done}, the updates that were taken")

    def check_fixed(self, sha256: str) -> None:
        """Refuse to go on with another base, reference or teacher.

        Raises:
          ConfigError: where they have changed.
        """
        if sha256 != self.fixed_sha256:
            raise ConfigError(
                "policy.path or distill.teacher holds other weights than when this run began; put "
                "the old ones back, or start a new run from this one's policy"
            )


def _is_free(name: str, recipe: OfflineRecipe) -> bool:
    if name == "run.steps":  # how long a run is decides its learning rates where they decay
        return recipe.learner.decay_share == 0
    return name in _FREE or name.partition(".")[0] in _FREE_SECTIONS


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Give `section.key` → value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else None
        flat |= {above + key: value} if inner is None else inner
    return flat
