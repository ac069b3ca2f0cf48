"""The record beside the arrays in a checkpoint of `headrace train`, and what it binds a run to."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .config import Recipe
from .controller_state import member_rule
from .errors import ConfigError, describe
from .groups.saved import ledger_from
from .groups.state import Ledger
from .kept_settings import check_data, check_kept, check_steps
from .offline.sources import sha256_of
from .tables import from_table

# What may change between two processes of a run: nothing that is learnt depends on it, beyond
# rounding and timing. A file of tasks is told by its digest, not by its path.
_FREE = (
    "checkpoint",
    "controller",
    "evaluate",
    "mesh",
    "prompts.path",
    "rollout.close_deadline_seconds",
    "rollout.env_deadline_seconds",
    "rollout.sample_deadline_seconds",
    "run.compilation_cache",
    "run.predict",
    "run.save_policy",
    "run.view",
    "sampler.pages",
    "sampler.prefill_lanes",
    "sampler.rows",
)


@dataclass(frozen=True)
class SavedRun:
    """The record; plain JSON as a table.

    Attributes:
      settings: the recipe's.
      tasks_sha256: of the file of tasks; "" without one.
      fixed_sha256: see `Learner.fixed_sha256`.
      position: in the tasks, see `TaskStream.state`.
      lengths: how much had been written of the files of records.
      controller: see `ControllerState.table`.
      ready_bytes: of the groups that were ready.
      journal: see `Journal.table`.
      wall_seconds: of processes that have ended, up to the checkpoint that the next went on from.
      resumed_from: after how many updates each further process went on.
    """

    settings: Mapping[str, Any]
    tasks_sha256: str
    fixed_sha256: str
    position: Mapping[str, Any]
    lengths: Mapping[str, int]
    controller: Mapping[str, Any]
    ready_bytes: int
    journal: Mapping[str, Any]
    wall_seconds: float
    resumed_from: tuple[int, ...] = ()

    def table(self) -> dict[str, Any]:
        """Return the record as JSON has it."""
        return asdict(self)

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "SavedRun":
        """Read a record, to go on from it.

        Raises:
          ConfigError: where it isn't one of a run of `headrace train`.
        """
        try:
            saved = SavedRun(**table)
            resumed_from = (*saved.resumed_from, saved.ledger.committed)
            return replace(saved, resumed_from=resumed_from)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"its record is not whole: {describe(error)}") from error

    @property
    def recipe(self) -> Recipe:
        """The recipe that the run began with."""
        return from_table(Recipe, self.settings)

    @property
    def ledger(self) -> Ledger:
        """The ledger at that time."""
        recipe = self.recipe
        return ledger_from(self.controller["ledger"], recipe.schedule, member_rule(recipe.rollout))

    @property
    def updates(self) -> int:
        """How many were taken."""
        return self.ledger.committed

    def check_settings(self, recipe: Recipe) -> None:
        """Refuse to go on with settings or tasks that would teach something else.

        Raises:
          ConfigError: with what has changed.
        """
        free = {*_FREE}
        if recipe.learner.decay_share == 0:  # else it decides the learning rates
            free.add("run.steps")
        check_kept(self.recipe, recipe, free)
        check_steps(recipe.run.steps, done=self.updates)
        path = recipe.prompts.path
        if path is not None:
            now = sha256_of(path)
            check_data(path, before=self.tasks_sha256, now=now, flag="--prompts.path")

    def check_fixed(self, sha256: str) -> None:
        """Refuse to go on with another base or teacher.

        Raises:
          ConfigError: where they have changed.
        """
        if sha256 != self.fixed_sha256:
            raise ConfigError(
                "policy.path or distillation.teacher holds other weights than when this run "
                "began; put the old ones back, or start a new run from this one's policy"
            )
