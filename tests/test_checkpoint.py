"""Checkpoints: whole or not there, exact, on whatever mesh, and no more than are kept."""

import errno
import json
import os
import re
import sys
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from headrace import ConfigError
from headrace.pipeline.checkpoint import Checkpoints, NotSaved
from headrace.pipeline.run_config import CheckpointConfig
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from tests.fakes.full_disk import files_of_at_most

RECORD = {"position": {"cursor": 3}, "names": ["a"], "nothing": None, "loss": float("inf")}


def state():
    numbers = np.array([np.nan, np.inf, -0.0, 1e-45, 1 / 3, 0, 1, 2], np.float32)
    return {"w": jnp.asarray(numbers), "moments": (jnp.ones((8, 2), jnp.bfloat16), jnp.int32(7))}


def placed(tree, sizes, *axes):
    fsdp, tensor = sizes
    mesh = make_mesh(jax.devices()[: fsdp * tensor], {FSDP: fsdp, TENSOR: tensor})

    def put(leaf):
        return jax.device_put(leaf, NamedSharding(mesh, P(*axes) if leaf.ndim else P()))

    return jax.tree.map(put, tree)


def test_a_state_comes_back_bit_for_bit_where_it_is_wanted(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest() is None
    assert not (tmp_path / "checkpoints").exists()
    checkpoints.save(5, placed(state(), (4, 2), FSDP), RECORD)
    assert checkpoints.latest() == 5
    assert checkpoints.record(5) == RECORD
    like = placed(jax.tree.map(jnp.zeros_like, state()), (2, 1), FSDP)
    found = checkpoints.state(5, like)
    chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), found),
        jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), state()),
    )
    chex.assert_trees_all_equal(
        *(jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (found, like))
    )


def test_old_ones_go_and_what_a_killed_process_left_goes_too(tmp_path, caplog):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for item in ("state", "record", "checksum"):
        left = tmp_path / "9.orbax-checkpoint-tmp" / f"{item}.orbax-checkpoint-tmp"
        (left / "d").mkdir(parents=True)
    assert checkpoints.latest() is None
    assert left.exists()  # who reads changes nothing; Orbax's own cleaning races with itself
    for step in (1, 2, 3, 3):
        checkpoints.save(step, state(), {"step": step})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    assert checkpoints.latest() == 3
    assert checkpoints.record(2) == {"step": 2}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_cannot_be_read_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(), RECORD)
    with pytest.raises(ConfigError, match=r"1 can't be read: .*; there is no older one"):
        checkpoints.state(1, {"other": jnp.zeros(3)})
    for like in (jnp.zeros((2, 4)), np.zeros(8, np.int32)):
        wanted = re.escape(f"{like.dtype}{like.shape}")
        with pytest.raises(ConfigError, match=rf"float32\(8,\), and {wanted} is wanted; there is"):
            checkpoints.state(1, state() | {"w": like})


@pytest.mark.parametrize("change", [{"format": 99}, {}])
def test_a_checkpoint_of_another_format_is_refused(tmp_path, change):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state(), RECORD)
    record = tmp_path / "1" / "record" / "metadata"
    record.write_text(json.dumps(RECORD | change))
    with pytest.raises(ConfigError, match=r"has format .* go on with the version that wrote it"):
        checkpoints.record(1)


def test_what_a_disk_changed_is_not_taken_for_what_was_saved(tmp_path):
    saved = {"w": np.random.default_rng(0).normal(size=(64, 64))}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, saved, RECORD)
    refused = 0
    for path in [path for path in (tmp_path / "1" / "state").rglob("*") if path.is_file()]:
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + b"\xa5" + content[middle + 1 :])
        try:
            found = checkpoints.state(1, saved)
        except ConfigError:
            refused += 1
        else:
            chex.assert_trees_all_equal(found, saved)
        path.write_bytes(content)
    assert refused > 2


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_a_full_disk_is_told_of_once_and_leaves_what_was_there(
    tmp_path, capfd, caplog, monkeypatch, kind
):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    rng = np.random.default_rng(0)
    saved = {str(i): kind(rng.normal(size=(64, 64)).astype(np.float32)) for i in range(20)}
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, saved, RECORD)
    assert sys.unraisablehook == told.append
    with (
        files_of_at_most(20_000),
        pytest.raises(
            NotSaved, match=f"2, of about 0.3 MB, can't be written: {os.strerror(errno.EFBIG)}$"
        ),
    ):
        checkpoints.save(2, saved, RECORD)
    time.sleep(0.2)  # for TensorStore's threads
    assert (told, caplog.records, capfd.readouterr()) == ([], [], ("", ""))
    assert checkpoints.latest() == 1
    chex.assert_trees_all_equal(checkpoints.state(1, saved), saved)
    checkpoints.save(2, saved, RECORD)
    assert [path.name for path in tmp_path.iterdir()] == ["2"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotSaved, match=r"1, of about .* can't be written: Not a directory"):
        Checkpoints(tmp_path / "file").save(1, state(), RECORD)


@pytest.mark.parametrize("sizes", [{"every": -1}, {"keep": 0}])
def test_numbers_are_checked(sizes):
    with pytest.raises(ConfigError, match="checkpoint"):
        CheckpointConfig(**sizes)
