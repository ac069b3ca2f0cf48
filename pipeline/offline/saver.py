"""Saves a run without rollouts, and brings its learner back to what was saved."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoints
from .config import OfflineRecipe, command_of
from .learner import OfflineLearner
from .progress import Progress, Saved
from .sources import sha256_of


class OfflineSaver:
    """The checkpoints of one run; call it on the device thread."""

    def __init__(self, recipe: OfflineRecipe, folder: Path, saved: Saved | None) -> None:
        """Args:
        folder: of the checkpoints.
        saved: of the checkpoint that the run goes on from; None: it begins.
        """
        self._recipe = recipe
        self._saved = saved
        self._checkpoints = Checkpoints(folder, keep=recipe.checkpoint.keep)
        self._hashes = {"data_sha256": "", "fixed_sha256": ""}

    def begin(self, learner: OfflineLearner) -> None:
        """Bring the learner to the saved state, if there is one.

        Raises:
          ConfigError: where what is saved can't be read, or belongs to other weights.
        """
        saved = self._saved
        if saved is not None:
            saved.check_fixed(learner.fixed_sha256())
            self._hashes = {
                "data_sha256": saved.data_sha256,  # which has been compared
                "fixed_sha256": saved.fixed_sha256,
            }
            learner.restore(partial(self._checkpoints.state, saved.progress.updates))
        elif self._recipe.checkpoint.every:
            self._hashes = {
                "data_sha256": sha256_of(self._recipe.data.path),
                "fixed_sha256": learner.fixed_sha256(),
            }

    def save(
        self,
        state: Any,
        progress: Progress,
        *,
        position: Mapping[str, Any],
        lengths: Mapping[str, int],
    ) -> None:
        """Save one moment.

        Args:
          state: the learner's, on the host.
          position: in the rows.
          lengths: of the files of records.
        """
        record = Saved(
            command=command_of(self._recipe),
            settings=asdict(self._recipe),
            **self._hashes,
            position=position,
            lengths=lengths,
            progress=progress,
        )
        self._checkpoints.save(progress.updates, state, record.table())
