"""How a learner's arrays lie on a mesh: parameters by their logical axes, batches by rows.

Placing changes no value. Sums over devices are taken in another order than on one, so results
agree up to float32's rounding.
"""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from ...sharding.mesh import Topology
from ...sharding.partition import shard, tree_shardings
from ...sharding.rules import LEARNER_RULES, partition_spec
from ..errors import check
from ..models.config import ModelConfig
from ..types import TrainBatch

Tree = Any


@dataclass(frozen=True)
class MeshConfig:
    """On how many devices a learner runs: fsdp times tensor, the first ones of this process."""

    fsdp: int = 1
    """Parts that parameters, the optimizer's state and the rows of a batch are cut into."""
    tensor: int = 1
    """Parts that heads, hidden units and the vocabulary are cut into."""

    def __post_init__(self) -> None:
        for name in ("fsdp", "tensor"):
            check(getattr(self, name) >= 1, f"mesh.{name}", getattr(self, name), ">= 1")

    def topology(self) -> Topology:
        """Take the devices.

        Raises:
          ConfigError: where this process has fewer.
        """
        devices, needed = jax.local_devices(), self.fsdp * self.tensor
        most = f"at most {len(devices)}, the devices of this process"
        hint = "lower --mesh.fsdp or --mesh.tensor"
        check(needed <= len(devices), "mesh.fsdp times mesh.tensor", needed, most, hint=hint)
        used = tuple(devices[:needed])
        return Topology(used, used, self.tensor, self.tensor)

    def check_fits(self, model: ModelConfig, vocab_size: int, rows: int) -> None:
        """Refuse sizes that the mesh can't cut evenly.

        Args:
          rows: R of a microbatch.

        Raises:
          ConfigError: with the size.
        """
        for parts, name, size in (
            ("fsdp", "learner.microbatch_rows", rows),
            ("fsdp", "the model's width", model.width),
            ("tensor", "the model's kv heads", model.num_kv_heads),
            ("tensor", "the model's ffn width", model.ffn_width),
            ("tensor", "the vocabulary's entries", vocab_size),
        ):
            value = getattr(self, parts)
            check(size % value == 0, f"mesh.{parts}", value, f"a divisor of {name}, {size}")


def place(params: Tree, axes: Tree, mesh: Mesh) -> Tree:
    """Place parameters by the logical names of their axes."""
    return shard(params, tree_shardings(axes, mesh, LEARNER_RULES))


def whole(mesh: Mesh) -> NamedSharding:
    """Say that an array has a copy on each device."""
    return NamedSharding(mesh, partition_spec((), LEARNER_RULES))


def by_rows(mesh: Mesh) -> NamedSharding:
    """Say that an array over tokens, [A, R, T], is cut by rows."""
    return NamedSharding(mesh, partition_spec((None, "rows"), LEARNER_RULES))


def place_rows(batch: TrainBatch, mesh: Mesh) -> TrainBatch:
    """Place a batch's arrays: those over tokens by rows, numbers on each device."""
    shardings = jax.tree.map(lambda leaf: by_rows(mesh) if leaf.ndim else whole(mesh), batch)
    placed: TrainBatch = jax.device_put(batch, shardings)
    return placed


def place_rest(tree: Tree, mesh: Mesh) -> Tree:
    """Put what isn't on the mesh yet on each of its devices, such as an optimizer's count."""

    def placed(leaf: jax.Array) -> jax.Array:
        there = isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh
        return leaf if there else jax.device_put(leaf, whole(mesh))

    return jax.tree.map(placed, tree)
