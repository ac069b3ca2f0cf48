"""Checkpoints of several processes: the first saves by itself, and each reads by itself."""

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from headrace import ConfigError
from headrace.pipeline.checkpoint import Checkpoints
from headrace.pipeline.learner.state import described
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from headrace.sharding.partition import on_host, shard
from tests.processes.launch import run_in_processes

AXES = {
    "both": PartitionSpec(FSDP, TENSOR),
    "rows": PartitionSpec(FSDP),
    "odd": PartitionSpec(),
    "step": PartitionSpec(),
}
RECORD = {"cursor": 3, "names": ["a"]}


def state() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    both = rng.normal(size=(8, 12)).astype(np.float32)
    both[:4, 0] = [np.nan, -0.0, np.inf, 1e-45]
    rows = np.asarray(rng.normal(size=(64, 128)), jnp.bfloat16)
    return {"both": both, "rows": rows, "odd": both[:3, 0].copy(), "step": np.array(7, np.int32)}


def placed(fsdp: int, tensor: int) -> dict[str, jax.Array]:
    mesh = make_mesh(jax.devices()[: fsdp * tensor], {FSDP: fsdp, TENSOR: tensor})
    shardings = {name: NamedSharding(mesh, axes) for name, axes in AXES.items()}
    arrays: dict[str, jax.Array] = shard(state(), shardings)
    return arrays


def as_bytes(arrays: dict[str, Any]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in on_host(arrays).items()}


def restored(folder: Path, step: int, fsdp: int, tensor: int) -> dict[str, bytes]:
    """Read a step onto a mesh, beside an array that stays on the host."""
    wanted = placed(fsdp, tensor)
    like = {name: described(array) for name, array in wanted.items()} | {"odd": state()["odd"]}
    found = Checkpoints(folder).state(step, like)
    assert isinstance(found["odd"], np.ndarray)
    for name in AXES.keys() - {"odd"}:
        assert found[name].sharding == wanted[name].sharding
    return as_bytes(found)


def damage(folder: Path) -> None:
    """Change one byte in the middle of the largest file."""
    largest = max(folder.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def save_alone(folder: Path, damaged: Path) -> None:
    """Let process 0 save on another thread, while the others do nothing."""
    first, finished = jax.process_index() == 0, folder.with_name("finished")
    arrays = on_host(placed(2, 2), keep=first)
    if first:
        thread = threading.Thread(target=Checkpoints(folder).save, args=(1, arrays, RECORD))
        thread.start()
        thread.join()
        shutil.copytree(folder, damaged)
        damage(damaged)
        finished.touch()
    else:
        assert arrays == dict.fromkeys(AXES)
        while not finished.exists():
            time.sleep(0.01)


def save_and_read(
    folder: Path, from_one: Path
) -> tuple[int | None, Any, dict[str, bytes], dict[str, bytes]]:
    damaged, checkpoints = folder.with_name("damaged"), Checkpoints(folder)
    save_alone(folder, damaged)
    with pytest.raises(ConfigError, match="damaged/1 can't be read"):
        restored(damaged, 1, 4, 1)
    return (
        checkpoints.latest(),
        checkpoints.latest_record(dict),
        restored(folder, 1, 4, 1),
        restored(from_one, 2, 2, 2),
    )


def test_one_process_saves_and_all_read(tmp_path: Path) -> None:
    folder, from_one, run = (tmp_path / name for name in ("checkpoints", "from_one", "run"))
    run.mkdir()
    Checkpoints(from_one).save(2, jax.tree.map(jnp.asarray, state()), RECORD)
    expected = as_bytes(state())
    for latest, record, found, found_from_one in run_in_processes(
        save_and_read, folder, from_one, folder=run
    ):
        assert (latest, record) == (1, RECORD)
        assert found == found_from_one == expected
    assert restored(folder, 1, 1, 1) == restored(folder, 1, 2, 4) == expected
    assert [path.name for path in folder.iterdir()] == ["1"]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices"), [(4, 1), (3, 2), (1, 4)])
def test_other_processes_read_what_one_saved(tmp_path: Path, processes: int, devices: int) -> None:
    folder, run = tmp_path / "checkpoints", tmp_path / "run"
    run.mkdir()
    Checkpoints(folder).save(1, state(), RECORD)
    sizes = (2, processes * devices // 2)
    found = run_in_processes(
        restored, folder, 1, *sizes, folder=run, processes=processes, devices=devices
    )
    assert found == [as_bytes(state())] * processes


def save_after_the_other_was_killed(folder: Path, number: Path) -> None:
    arrays = on_host(placed(2, 2))
    if jax.process_index() == 1:
        number.with_suffix(".new").write_text(str(os.getpid()))
        number.with_suffix(".new").rename(number)
        os.kill(os.getpid(), signal.SIGKILL)
    while not number.exists():
        time.sleep(0.01)
    while is_running(int(number.read_text())):
        time.sleep(0.01)
    Checkpoints(folder).save(1, arrays, RECORD)
    os._exit(0)  # JAX would wait for the other


def is_running(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.slow
def test_a_save_ends_where_the_other_process_has_gone(tmp_path: Path) -> None:
    folder, run = tmp_path / "checkpoints", tmp_path / "run"
    run.mkdir()
    with pytest.raises(AssertionError, match=rf"ended with \[0, -{signal.SIGKILL:d}\]"):
        run_in_processes(save_after_the_other_was_killed, folder, tmp_path / "number", folder=run)
    assert restored(folder, 1, 2, 2) == as_bytes(state())
