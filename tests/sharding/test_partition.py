"""Trees placed on a mesh: each device holds its part, values stay."""

import jax
import jax.numpy as jnp
import numpy as np

from headrace.sharding.mesh import make_mesh
from headrace.sharding.partition import init_sharded, replicated, shard, tree_shardings
from headrace.sharding.rules import LEARNER_RULES

AXES = {"embedding": ("vocab", "width"), "layers": [{"norm": ("layers", "width")}], "step": ()}


def make_tree() -> dict[str, object]:
    return {
        "embedding": np.arange(64, dtype=np.float32).reshape(8, 8),
        "layers": [{"norm": np.arange(24, dtype=np.float32).reshape(3, 8)}],
        "step": np.array(7, np.int32),
    }


def assert_equal(one: object, other: object) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_each_device_holds_its_part() -> None:
    mesh = make_mesh(jax.devices()[:8], {"fsdp": 4, "tensor": 2})
    placed = shard(make_tree(), tree_shardings(AXES, mesh, LEARNER_RULES))
    assert_equal(placed, make_tree())
    assert {s.data.shape for s in placed["embedding"].addressable_shards} == {(4, 2)}
    assert {s.data.shape for s in placed["layers"][0]["norm"].addressable_shards} == {(3, 2)}
    assert {s.data.shape for s in placed["step"].addressable_shards} == {()}


def test_replicated_puts_a_whole_copy_on_each_device() -> None:
    mesh = make_mesh(jax.devices()[:8], {"fsdp": 8})
    placed = shard(make_tree(), replicated(make_tree(), mesh))
    assert_equal(placed, make_tree())
    assert [s.data.shape for s in placed["embedding"].addressable_shards] == [(8, 8)] * 8


def test_init_makes_shards_with_values_that_do_not_depend_on_the_mesh() -> None:
    def init(key: jax.Array) -> dict[str, jax.Array]:
        return {"w": jax.random.normal(key, (8, 16), jnp.float32)}

    results = []
    for sizes in ({"fsdp": 1, "tensor": 1}, {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "tensor": 4}):
        count = sizes["fsdp"] * sizes["tensor"]
        mesh = make_mesh(jax.devices()[:count], sizes)
        shardings = tree_shardings({"w": ("width", "ffn")}, mesh, LEARNER_RULES)
        made = init_sharded(init, shardings, jax.random.key(3))
        assert made["w"].sharding == shardings["w"]
        results.append(made)
    assert_equal(results[1], results[0])
    assert_equal(results[2], results[0])
