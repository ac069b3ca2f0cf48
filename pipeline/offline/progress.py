"""How far a run without rollouts has come, and whether another start may go on from there."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import ConfigError, describe
from ..kept_settings import check_data, check_kept, check_steps
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
      lengths: how much had been written of the files of records.
      progress: at that time.
    """

    command: str
    settings: Mapping[str, Any]
    data_sha256: str
    fixed_sha256: str
    position: Mapping[str, Any]
    lengths: Mapping[str, int]
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
        free = {*_FREE, *_FREE_SECTIONS}
        if recipe.learner.decay_share == 0:  # else it decides the learning rates
            free.add("run.steps")
        check_kept(before, recipe, free)

    def check_data(self, path: str) -> None:
        """Refuse to go on with other rows.

        Raises:
          ConfigError: where the file isn't the one that the run began with.
        """
        now = sha256_of(path)
        check_data(path, before=self.data_sha256, now=now, flag="--data.path")

    def check_steps(self, steps: int) -> None:
        """Refuse to go on to fewer updates than were taken.

        Raises:
          ConfigError: in this case.
        """
        check_steps(steps, done=self.progress.updates)

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
