"""Saves a run of `headrace train`, and brings back what was saved.

Invariant: a checkpoint is one moment of the run, between two updates: what the record and the
arrays say belongs together, whatever goes on while they are written.
"""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import trio
from numpy.typing import NDArray

from ..sharding.partition import on_host
from .assemble import Parts
from .checkpoint import Checkpoints
from .config import Recipe
from .controller_state import ControllerState, state_from
from .learner.service import Learner
from .learner.state import Params, described
from .offline.sources import sha256_of
from .saved_run import SavedRun
from .weight_sync import Convert


class Saver:
    """The checkpoints of one run, seen from its parts."""

    def __init__(self, recipe: Recipe, parts: Parts, folder: Path, saved: SavedRun | None) -> None:
        """Args:
        folder: of the checkpoints.
        saved: of the checkpoint that the run goes on from; None: it begins.
        """
        self._recipe = recipe
        self._tasks = parts.tasks
        self._sampler, self._device = parts.sampler, parts.device
        self._saved = saved
        self._checkpoints = Checkpoints(folder, keep=recipe.checkpoint.keep)
        self._hashes = {"tasks_sha256": "", "fixed_sha256": ""}
        self._held: dict[int, Params] = {}
        self._learner: Learner | None = None  # until `begin`
        self._keeps = parts.processes.index == 0  # what is copied
        calls = parts.processes.calls
        self._copy_weights = calls.add("copy weights", self._copied_weights)
        self._copy_state = calls.add("copy state", self._copied_state)

    @property
    def begins(self) -> bool:
        """Whether the run begins here, and doesn't go on from what was saved."""
        return self._saved is None

    def begin(self, learner: Learner, convert: Convert) -> ControllerState | None:
        """Bring the learner to the saved state, and return the controller's; None: begin.

        Call it on the learner's thread, once all programs are compiled.

        Raises:
          ConfigError: where what is saved can't be read, or belongs to other weights.
        """
        self._learner, saved = learner, self._saved
        if saved is not None:
            saved.check_fixed(learner.fixed_sha256())
            self._hashes = {
                "tasks_sha256": saved.tasks_sha256,  # which has been compared
                "fixed_sha256": saved.fixed_sha256,
            }
            return state_from(
                saved.controller,
                self._restore(saved, learner, convert),
                schedule=self._recipe.schedule,
                rollout=self._recipe.rollout,
                find=self._tasks.find,
            )
        if self._recipe.checkpoint.every:
            path = self._recipe.prompts.path
            self._hashes = {
                "tasks_sha256": "" if path is None else sha256_of(path),
                "fixed_sha256": learner.fixed_sha256(),
            }
        return None

    def take_held(self, version: int) -> Params | None:
        """Return, once, the saved weights of an older version; None for those of the learner."""
        return self._held.pop(version, None)

    async def save(
        self,
        state: ControllerState,
        *,
        lengths: Mapping[str, int],
        journal: Mapping[str, Any],
        wall_seconds: float,
    ) -> None:
        """Save one moment; sampling goes on meanwhile, on the device and off it."""
        controller, ready = state.table()
        step = state.ledger.committed
        record = SavedRun(
            settings=asdict(self._recipe),
            **self._hashes,
            position=self._tasks.state(),
            lengths=lengths,
            controller=controller,
            ready_bytes=len(ready),
            journal=journal,
            wall_seconds=wall_seconds,
            resumed_from=() if self._saved is None else self._saved.resumed_from,
        ).table()
        arrays = await self._sampler.device.run(partial(self._copy_weights, state.held))
        arrays["learner"] = await self._device.run(self._copy_state)
        arrays["ready"] = ready
        save = partial(self._checkpoints.save, step, arrays, record)
        await trio.to_thread.run_sync(save, abandon_on_cancel=True)

    def _copied_weights(self, versions: tuple[int, ...]) -> dict[str, Any]:
        """Copy weights that the sampler has to the host."""
        weights = {version: self._sampler.weights(version) for version in versions}
        return {
            _name(version): on_host(jax.tree.leaves(it), keep=self._keeps)
            for version, it in weights.items()
        }

    def _copied_state(self) -> Any:
        """Copy what changes in the learner to the host, so that the device is free."""
        assert self._learner is not None, "it has begun"
        return on_host(self._learner.arrays, keep=self._keeps)

    def _restore(self, saved: SavedRun, learner: Learner, convert: Convert) -> NDArray[np.uint8]:
        """Read all arrays; return those of the groups that are ready."""
        held = saved.controller["held"]
        weights, structure = jax.tree.flatten(convert(learner.params)) if held else ([], None)
        like: dict[str, Any] = {_name(version): [*map(described, weights)] for version in held}
        del weights
        like["ready"] = np.zeros(saved.ready_bytes, np.uint8)
        found: dict[str, Any] = {}

        def read(arrays: Any) -> Any:
            found.update(self._checkpoints.state(saved.updates, {"learner": arrays, **like}))
            return found["learner"]

        learner.restore(read)
        for version in held:
            self._held[version] = jax.tree.unflatten(structure, found[_name(version)])
        return np.asarray(found["ready"])


def _name(version: int) -> str:
    return f"version {version}"
