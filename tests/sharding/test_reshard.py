"""Law 14: there and back is the identity; and no buffer is shared."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from headrace.sharding.mesh import Topology
from headrace.sharding.partition import shard, tree_shardings
from headrace.sharding.reshard import Strategy, choose_strategy, make_reshard
from headrace.sharding.rules import LEARNER_RULES, SAMPLER_RULES

AXES = {"embedding": ("vocab", "width"), "layers": {"gate": ("layers", "width", "ffn")}}


def make_tree(seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return {
        "embedding": rng.normal(size=(16, 8)).astype(np.float32),
        "layers": {"gate": rng.integers(-9, 9, size=(3, 8, 16)).astype(np.int32)},
    }


def learner_tree(mesh: Mesh, seed: int = 0) -> Any:
    return shard(make_tree(seed), tree_shardings(AXES, mesh, LEARNER_RULES))


def topology(learner: int, sampler: int, *, learner_tensor: int, sampler_tensor: int) -> Topology:
    devices = tuple(jax.devices())
    return Topology(
        devices[:learner],
        devices[:learner] if sampler == 0 else devices[learner : learner + sampler],
        learner_tensor=learner_tensor,
        sampler_tensor=sampler_tensor,
    )


PLACES = {
    "collocated": topology(8, 0, learner_tensor=2, sampler_tensor=4),
    "equal": topology(4, 4, learner_tensor=2, sampler_tensor=4),
    "fewer": topology(4, 2, learner_tensor=1, sampler_tensor=2),
    "more": topology(2, 4, learner_tensor=2, sampler_tensor=2),
    "uneven": topology(3, 4, learner_tensor=1, sampler_tensor=4),
}


def assert_same(moved: Any, expected: Any) -> None:
    def check(one: jax.Array, other: np.ndarray) -> None:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)

    jax.tree.map(check, moved, expected)


@pytest.mark.parametrize(
    ("place", "there", "back"),
    [
        ("collocated", None, None),
        ("equal", None, None),
        ("equal", "staged", "staged"),
        ("fewer", "staged", "host"),
        ("more", "host", "staged"),
        ("more", "staged", "staged"),
    ],
)
@settings(max_examples=3)
@given(seed=st.integers(0, 1000))
def test_law_14_there_and_back_is_the_identity(
    place: str, there: Strategy | None, back: Strategy | None, seed: int
) -> None:
    where = PLACES[place]
    source, target = where.learner_mesh, where.sampler_mesh
    inside = tree_shardings(AXES, source, LEARNER_RULES)
    outside = tree_shardings(AXES, target, SAMPLER_RULES)
    moved = make_reshard(source, outside, strategy=there)(learner_tree(source, seed))
    assert_same(moved, make_tree(seed))
    assert jax.tree.map(lambda leaf: leaf.sharding, moved) == outside
    returned = make_reshard(target, inside, strategy=back)(moved)
    assert_same(returned, make_tree(seed))
    assert jax.tree.map(lambda leaf: leaf.sharding, returned) == inside


@pytest.mark.parametrize(
    ("place", "strategy"),
    [("collocated", "same_devices"), ("equal", "host"), ("equal", "staged"), ("more", "host")],
)
def test_the_source_may_be_deleted_at_once(place: str, strategy: Strategy) -> None:
    where = PLACES[place]
    # Equal shardings on both sides, where handing buffers on would be the most tempting.
    rules = {"vocab": None, "width": None, "layers": None, "ffn": None}
    source_shardings = tree_shardings(AXES, where.learner_mesh, rules)
    target_shardings = tree_shardings(AXES, where.sampler_mesh, rules)
    source = shard(make_tree(), source_shardings)
    moved = make_reshard(where.learner_mesh, target_shardings, strategy=strategy)(source)
    for leaf in jax.tree.leaves(source):
        leaf.delete()
    assert_same(moved, make_tree())


@pytest.mark.parametrize("strategy", ["host", "staged"])
def test_the_transform_runs_before_the_move(strategy: Strategy) -> None:
    where = PLACES["equal"]

    def unstack(tree: Any) -> Any:
        gate = tree["layers"]["gate"].astype(jnp.bfloat16)
        return {"embedding": tree["embedding"], "layers": [{"gate": g} for g in gate]}

    axes = {"embedding": ("vocab", "width"), "layers": [{"gate": ("width", "ffn")}] * 3}
    shardings = tree_shardings(axes, where.sampler_mesh, SAMPLER_RULES)
    publish: Callable[[Any], Any] = make_reshard(
        where.learner_mesh, shardings, transform=unstack, strategy=strategy
    )
    moved = publish(learner_tree(where.learner_mesh))
    assert_same(moved["embedding"], make_tree()["embedding"])
    for layer, gate in zip(moved["layers"], make_tree()["layers"]["gate"], strict=True):
        assert layer["gate"].dtype == jnp.bfloat16
        np.testing.assert_array_equal(np.asarray(layer["gate"], np.float32), gate)
        assert layer["gate"].sharding.mesh == where.sampler_mesh


def test_moving_again_compiles_nothing() -> None:
    where = PLACES["collocated"]
    shardings = tree_shardings(AXES, where.sampler_mesh, SAMPLER_RULES)
    traces = []

    def transform(tree: Any) -> Any:
        traces.append(1)
        return tree

    move = make_reshard(where.learner_mesh, shardings, transform=transform)
    for seed in range(3):
        move(learner_tree(where.learner_mesh, seed))
    assert len(traces) == 1


def test_the_strategy_follows_the_devices() -> None:
    def choose(where: Topology) -> Strategy:
        shardings = tree_shardings(AXES, where.sampler_mesh, SAMPLER_RULES)
        return choose_strategy(where.learner_mesh, shardings)

    chosen = {name: choose(where) for name, where in PLACES.items()}
    assert chosen.pop("collocated") == "same_devices"
    assert set(chosen.values()) == {"host"}  # these devices are CPUs


def test_impossible_moves_are_refused() -> None:
    where = PLACES["uneven"]
    shardings = tree_shardings(AXES, where.sampler_mesh, SAMPLER_RULES)
    with pytest.raises(ValueError, match="divides 3, the devices of the source, got 4"):
        make_reshard(where.learner_mesh, shardings, strategy="staged")
    mixed = {
        "a": shardings["embedding"],
        "b": tree_shardings(AXES, where.learner_mesh, LEARNER_RULES)["embedding"],
    }
    with pytest.raises(ValueError, match="must lie on one mesh, got 2 meshes"):
        make_reshard(where.learner_mesh, mixed)
