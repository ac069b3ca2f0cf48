"""The processes that the tests beside this one run in see each other's devices."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from headrace.sharding.mesh import make_mesh
from tests.processes.launch import run_in_processes


def add_up(numbers: list[float]) -> tuple[int, float]:
    mesh = make_mesh(jax.devices(), {"fsdp": len(jax.devices())})
    cut = NamedSharding(mesh, PartitionSpec("fsdp"))
    array = np.array(numbers, np.float32)
    placed = jax.make_array_from_callback(array.shape, cut, lambda index: array[index])
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.process_index(), float(jax.jit(jnp.sum, out_shardings=whole)(placed))


def test_a_sum_over_two_processes(tmp_path: Path) -> None:
    results = run_in_processes(add_up, [1.0, 2.0, 3.0, 4.0], folder=tmp_path)
    assert results == [(0, 10.0), (1, 10.0)]
