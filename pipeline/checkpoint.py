"""What a run needs to go on after a kill: steps on disk, each a state of arrays and a record.

Invariants: a step is there whole or not at all, whenever the process dies; what is restored is
what was saved, bit for bit, on whatever mesh.
"""

import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from ..sharding.partition import shard
from .errors import ConfigError, HeadraceError
from .orbax_errors import refusal, told_once

T = TypeVar("T")

_STATE, _RECORD, _CHECKSUM = "state", "record", "checksum"
_FORMAT = 1  # grows where a step that was written before can't be read any more


class NotSaved(HeadraceError):
    """The operating system refused to write a checkpoint; those before are whole."""


class Checkpoints:
    """The checkpoints of one run, by the number of its updates; only one process writes.

    Example:
      checkpoints = Checkpoints(folder, keep=1)
      checkpoints.save(100, state, {"cursor": 3200})
      state = checkpoints.state(100, like=state)
    """

    def __init__(self, folder: Path, *, keep: int = 1) -> None:
        """Take a folder, which is made when the first step is saved."""
        self._folder = folder
        self._keep = keep

    def latest(self) -> int | None:
        """Return the newest step, None without one."""
        if not self._folder.is_dir():
            return None
        with self._manager() as manager:
            step: int | None = manager.latest_step()
            return step

    def latest_record(self, parse: Callable[[Mapping[str, Any]], T]) -> T | None:
        """Read the newest step's record, None without one.

        Args:
          parse: makes something of it, or raises a ConfigError.

        Raises:
          ConfigError: where it can't be read or parsed.
        """
        step = self.latest()
        if step is None:
            return None
        record = self.record(step)
        try:
            return parse(record)
        except ConfigError as error:
            raise ConfigError(
                f"{self.name(step)} can't be used: {error}; {self.remedy(step)}"
            ) from error

    def save(self, step: int, state: Any, record: Mapping[str, Any]) -> None:
        """Save a step; it is on disk on return. One that is there already stays.

        Args:
          state: a tree of arrays.
          record: JSON-serialisable.

        Raises:
          NotSaved: where the operating system refuses, as on a full disk.
        """
        items = {
            _STATE: ocp.args.StandardSave(state),
            _RECORD: ocp.args.JsonSave({"format": _FORMAT, **record}),
            _CHECKSUM: ocp.args.JsonSave({"crc32": _checksum(state)}),
        }
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True)
            self._remove_unfinished()  # of a process that was killed while it saved
            with self._manager() as manager:
                if manager.latest_step() != step:
                    manager.save(step, args=ocp.args.Composite(**items))
        except (OSError, ValueError) as error:
            reason = refusal(error)
            if reason is None:
                raise
            self._remove_unfinished()  # there may be room for a run's other files then
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 1e6
            raise NotSaved(
                f"{self.name(step)}, of about {max(size, 0.1):,.1f} MB, can't be written: {reason}"
            ) from error

    def record(self, step: int) -> dict[str, Any]:
        """Read a step's record.

        Raises:
          ConfigError: where it can't be read, or another version of Headrace wrote it.
        """
        found: dict[str, Any] = self._read(step, _RECORD, ocp.args.JsonRestore())
        written = found.pop("format", 0)
        if written != _FORMAT:
            raise ConfigError(
                f"{self.name(step)} has format {written}, and this version of Headrace reads "
                f"format {_FORMAT}; go on with the version that wrote it"
            )
        return found

    def state(self, step: int, like: T) -> T:
        """Read a step's state.

        Args:
          like: its tree, of arrays or their descriptions, which say where each is put.

        Raises:
          ConfigError: where it can't be read, is another tree, or isn't what was saved.
        """
        found = self._read(step, _STATE, _to_host(like))
        saved = self._read(step, _CHECKSUM, ocp.args.JsonRestore())["crc32"]
        if _checksum(found) != saved:  # Orbax notices most damage, but not in an array's numbers
            raise self._unreadable(step, "its arrays aren't those that were saved")
        leaves, structure = jax.tree.flatten(found)
        del found
        for index, wanted in enumerate(jax.tree.leaves(like)):
            one = leaves[index]
            if (one.shape, one.dtype) != (wanted.shape, wanted.dtype):
                what = f"{one.dtype}{one.shape}, and {wanted.dtype}{wanted.shape} is wanted"
                raise self._unreadable(step, f"it has an array {what}")
            leaves[index] = _placed(one, wanted)  # one by one, so that only one is there twice
        state: T = jax.tree.unflatten(structure, leaves)
        return state

    def name(self, step: int) -> str:
        """Name a step for people."""
        return f"the checkpoint {self._folder / str(step)}"

    def remedy(self, step: int) -> str:
        """Say what can be done where a step isn't of any use."""
        with self._manager() as manager:
            older = [other for other in manager.all_steps() if other < step]
        if older:
            return f"move it away to go on from the one after {max(older)} updates"
        return "there is no older one; a new run can begin with the run's config.toml"

    def _remove_unfinished(self) -> None:
        for left in self._folder.glob("*.orbax-checkpoint-tmp"):
            shutil.rmtree(left, ignore_errors=True)  # a thread of Orbax may still be in it

    def _read(self, step: int, item: str, how: Any) -> Any:
        try:
            with self._manager() as manager:
                return manager.restore(step, args=ocp.args.Composite(**{item: how}))[item]
        except (OSError, ValueError, KeyError, TypeError) as error:  # damaged, or of another kind
            text = str(error).strip("'")  # of a KeyError
            first_line, *_ = text.splitlines() or [type(error).__name__]
            raise self._unreadable(step, first_line) from error

    def _unreadable(self, step: int, reason: str) -> ConfigError:
        return ConfigError(f"{self.name(step)} can't be read: {reason}; {self.remedy(step)}")

    @contextmanager
    def _manager(self) -> Iterator[Any]:
        """Open the folder for one call, so that no thread is left between calls.

        In a program of several processes it is this one's alone: it waits for no other.
        """
        own = jax.process_index()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=self._keep,
            create=False,
            enable_async_checkpointing=False,
            multiprocessing_options=ocp.options.MultiprocessingOptions(
                primary_host=own, active_processes={own}
            ),
        )
        with told_once(), ocp.CheckpointManager(self._folder.absolute(), options=options) as open_:
            yield open_


def _to_host(like: Any) -> Any:
    """Ask Orbax for a tree of NumPy arrays, wherever those that were saved had lain."""
    item = jax.tree.map(lambda _: 0, like)  # only its structure counts
    how = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
    return ocp.args.PyTreeRestore(item=item, restore_args=how)


def _placed(array: Any, like: Any) -> Any:
    """Put an array where another one lies, which is on the host unless it has a sharding."""
    sharding = None if isinstance(like, np.ndarray) else like.sharding
    return array if sharding is None else shard(array, sharding).block_until_ready()


def _checksum(state: Any) -> int:
    """Return the CRC-32 of all arrays' bytes; it takes 0.25 s a gigabyte."""
    total = 0
    for leaf in jax.tree.leaves(state):
        content: Any = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
        total = zlib.crc32(content, total)
    return total
