"""Arrays over the devices of several processes: placed by all, brought to the host of each."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from headrace.sharding.partition import on_host, shard
from tests.processes.launch import run_in_processes

CUT = {"rows": PartitionSpec(FSDP), "both": PartitionSpec(FSDP, TENSOR), "whole": PartitionSpec()}


def numbers() -> dict[str, np.ndarray]:
    return {name: np.arange(32.0, dtype=np.float32).reshape(8, 4) for name in CUT}


def there_and_back() -> dict[str, np.ndarray]:
    mesh = make_mesh(jax.devices(), {FSDP: 2, TENSOR: 2})
    shardings = {name: NamedSharding(mesh, spec) for name, spec in CUT.items()}
    placed = shard(numbers(), shardings)
    assert {name: array.sharding for name, array in placed.items()} == shardings
    moved = shard(shard(jnp.asarray(numbers()["rows"]), shardings["rows"]), shardings["both"])
    spec = PartitionSpec(None, FSDP, TENSOR)
    stack = shard(numbers()["rows"].reshape(2, 4, 4), NamedSharding(mesh, spec))
    found: dict[str, np.ndarray] = on_host(placed | {"moved": moved, "stack": stack})
    return found | {"stack": found["stack"].reshape(8, 4)}


def test_arrays_come_back_whole_to_every_process(tmp_path: Path) -> None:
    expected = numbers()
    for found in run_in_processes(there_and_back, folder=tmp_path):
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected.get(name, expected["rows"]))


@pytest.mark.parametrize("name", CUT)
def test_one_sharding_may_stand_for_a_tree(name: str) -> None:
    mesh: Mesh = make_mesh(jax.devices()[:4], {FSDP: 2, TENSOR: 2})
    placed = shard(
        {"a": numbers(), "b": numbers()},
        {"a": NamedSharding(mesh, CUT[name])} | {"b": NamedSharding(mesh, PartitionSpec())},
    )
    assert {leaf.sharding.spec for leaf in placed["a"].values()} == {CUT[name]}
    np.testing.assert_array_equal(on_host(placed)["a"]["rows"], numbers()["rows"])
