"""What every process of a run without rollouts has of it: process 0 calls it, the others follow.

Processes prepare alike, one call after the other, without a word. From then on process 0 decides
what is called, and its followers do the same: see `processes.calls`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...sharding.partition import on_host
from ..learner.fingerprint import fingerprint
from ..policy.save import save_policy
from .assemble import OfflineParts, Packed, make_learner
from .config import OfflineRecipe
from .progress import Saved
from .saver import OfflineSaver


class OfflineReplica:
    """A learner with its programs, brought to where the run begins; call all on one thread.

    Attributes:
      learner: reads of it are no calls, and followers needn't know of them.
      update: `learner.update`.
      copy_state: copies all that changes to the host; followers get None in each array's place.
      fingerprint: hashes the learner's parameters.
      save: `save(folder)` saves the policy as it is.
    """

    def __init__(self, recipe: OfflineRecipe, parts: OfflineParts, saver: OfflineSaver) -> None:
        """Compile all programs, and go on from what was saved.

        Raises:
          ConfigError: where what is saved can't be read, or belongs to other weights.
        """
        self.learner, self._finish = make_learner(recipe, parts)
        self.learner.compile()
        saver.begin(self.learner)
        self._writes = parts.processes.index == 0
        self._batches: Iterator[Packed] = iter(())
        calls = parts.processes.calls
        self._next_batch = calls.share(self._take_batch if self._writes else None)
        self._evaluate = calls.add("evaluate", self._measure)
        self.update = calls.add("update", self.learner.update)
        self.copy_state = calls.add("copy state", self._copied_state)
        self.fingerprint = calls.add("fingerprint", self._hashed)
        self.save = calls.add("save policy", self._save)
        if parts.processes.count > 1:
            self._gather_once()

    def _gather_once(self) -> None:
        """Compile what gathers arrays from several processes: nothing shall compile later."""
        on_host(self.learner.state, keep=False)
        save_policy(self._finish(self.learner.params), Path(), writes=False)

    def evaluate(self, batches: Iterator[Packed]) -> dict[str, float]:
        """Call `learner.evaluate`; batches are read in process 0, which tells the others each."""
        self._batches = batches
        return self._evaluate()

    def _take_batch(self) -> Packed | None:
        return next(self._batches, None)

    def _measure(self) -> dict[str, float]:
        return self.learner.evaluate(iter(self._next_batch, None))

    def _copied_state(self) -> Any:
        return on_host(self.learner.state, keep=self._writes)

    def _hashed(self) -> str:
        return fingerprint(self.learner.params)

    def _save(self, folder: Path) -> None:
        policy = self._finish(self.learner.params)
        save_policy(policy, folder, replace=True, writes=self._writes)


def follow(recipe: OfflineRecipe, parts: OfflineParts, folder: Path, saved: Saved | None) -> None:
    """Follow process 0 from its preparation to its end.

    Args:
      parts: from `assemble_offline(recipe, processes)`.
      folder: of the checkpoints.
      saved: of the latest one, from which the run goes on; None: it begins.

    Raises:
      StageFailed: where something fails here and not in process 0, or that one has gone.
    """
    OfflineReplica(recipe, parts, OfflineSaver(recipe, folder, saved))
    parts.processes.calls.follow()
