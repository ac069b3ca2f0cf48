"""Resume and data: what a kill leaves is whole, and who begins at the same time finds a place."""

import itertools
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import chex
import jax
import numpy as np

from headrace import Policy, load_policy, save_policy
from headrace.pipeline.checkpoint import Checkpoints
from headrace.pipeline.observe.run_directory import RunDirectory
from tests.policy.test_policy import LLAMA, policy_of, random_params

FILE_EVENTS = {
    "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "os.utime", "os.listdir", "os.scandir", "shutil.rmtree",
    "shutil.move",
}  # fmt: skip


class Album:
    """Copies a folder whenever Python touches a file: all that a kill could leave there."""

    def __init__(self, folder: Path, where: Path) -> None:
        self._folder, self._where = folder, where
        self._looking = threading.Lock()
        self._last: object = None
        self._numbers = itertools.count()
        self.pictures: list[Path] = []

    def look(self) -> None:
        if self._looking.acquire(blocking=False):  # not while it copies itself
            try:
                self._take()
            except (FileNotFoundError, shutil.Error):  # blurred by another thread
                self._last = None
            finally:
                self._looking.release()

    def _take(self) -> None:
        now = [(path, path.lstat().st_size) for path in sorted(self._folder.rglob("*"))]
        if now != self._last:
            self._last = now
            picture = self._where / str(next(self._numbers))
            shutil.copytree(self._folder, picture)
            self.pictures.append(picture)


watching: list[Callable[[], None]] = []


def watch_files(event: str, arguments: tuple[object, ...]) -> None:
    if watching and event in FILE_EVENTS:
        watching[-1]()


sys.addaudithook(watch_files)  # which can't be taken back


@contextmanager
def pictures_of(folder: Path, where: Path) -> Iterator[list[Path]]:
    """Give all states of the folder in the block, the first and the last included."""
    album = Album(folder, where)
    album.look()
    watching.append(album.look)
    try:
        yield album.pictures
    finally:
        watching.clear()
    album.look()


def state(version: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(version)
    return {name: jax.numpy.asarray(rng.normal(size=(3, 4)), np.float32) for name in "abc"}


def test_conformance_27_a_crash_at_any_point_of_a_save_leaves_a_checkpoint_that_loads(tmp_path):
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.save(1, state(1), {"step": 1})
    with pictures_of(folder, tmp_path / "album") as pictures:
        checkpoints.save(2, state(2), {"step": 2})
    found = [newest(Checkpoints(picture)) for picture in pictures]
    assert found == sorted(found)
    assert found.count(1) > 5  # it was seen while it was made
    assert found.count(2) > 5  # and while the one before was taken away
    for picture in pictures[::6]:  # a run goes on from what was left
        Checkpoints(picture).save(3, state(3), {"step": 3})
        assert newest(Checkpoints(picture)) == 3


def newest(checkpoints: Checkpoints) -> int | None:
    """Load the newest checkpoint; return its number."""
    step = checkpoints.latest()
    if step is not None:
        assert checkpoints.record(step) == {"step": step}
        chex.assert_trees_all_equal(checkpoints.state(step, like=state(0)), state(step))
    return step


def test_conformance_27_a_crash_at_any_point_of_a_save_leaves_no_part_of_a_policy(tmp_path):
    """The one before, nothing for a moment, then the new one; always whole."""
    policies = [policy_of(LLAMA), policy_of(LLAMA)]
    policies[1] = replace(policies[1], params=random_params(policies[1].config, seed=1))
    folder = tmp_path / "run"
    save_policy(policies[0], folder / "policy")
    with pictures_of(folder, tmp_path / "album") as pictures:
        save_policy(policies[1], folder / "policy", replace=True, max_file_bytes=2000)
    found = []
    for picture in pictures:
        if (picture / "policy").exists():
            loaded = load_policy(picture / "policy")
            found.append([are_same(loaded, policy) for policy in policies].index(True))
    assert found == sorted(found)
    assert found.count(0) >= 3
    assert found.count(1) >= 1
    assert len(pictures) - len(found) <= 1


def are_same(one: Policy, other: Policy) -> bool:
    pairs = zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def test_conformance_27_runs_that_start_at_the_same_time_get_folders_of_their_own(tmp_path):
    def begin(_: int) -> Path:
        noon = datetime(2026, 3, 1, 12)
        return RunDirectory.create_default("calculator", parent=tmp_path / "runs", now=noon).path

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(begin, range(64)))
    assert len(set(folders)) == len(folders)
