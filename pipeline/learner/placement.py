"""How a learner's arrays lie on a mesh: parameters by their logical axes, batches by rows.

Placing changes no value. Sums over devices are taken in another order than on one, so results
agree up to float32's rounding.
"""

from dataclasses import dataclass, fields
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from ...sharding.mesh import Topology
from ...sharding.partition import shard
from ...sharding.rules import LEARNER_RULES, partition_spec
from ..errors import check
from ..models.config import ModelConfig
from ..types import TrainBatch

Tree = Any


@dataclass(frozen=True)
class MeshConfig:
    """On how many devices a learner runs: fsdp times tensor, the first ones of this process.

    Where JAX joins several processes these are all devices of all of them, as each must take part.
    """

    fsdp: int = 1
    """Parts that parameters, the optimizer's state and the rows of a batch are cut into."""
    tensor: int = 1
    """Parts that heads, hidden units and the vocabulary are cut into."""
    coordinator: str | None = None
    """HOST:PORT of process 0, where the processes of a run meet, each with devices of its own and
    started with this same command; auto: JAX finds it out, as on TPU pods; without it a run is one
    process."""
    processes: int = 0
    """How many there are; not needed with auto."""
    process: int = 0
    """The number of this one; 0 decides and writes the files, the others follow it."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = one.default
            if isinstance(least, int):
                check(value >= least, f"mesh.{one.name}", value, f">= {least}")

    def topology(self) -> Topology:
        """Take the devices.

        Raises:
          ConfigError: where there are fewer, or several processes have others, too.
        """
        used = _devices(self.fsdp * self.tensor)
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
            value, fits = getattr(self, parts), f"a divisor of {name}, {size}"
            more = " or --learner.microbatch-rows" if name.startswith("learner.") else ""
            hint = f"set --mesh.{parts}{more}"
            check(size % value == 0, f"mesh.{parts}", value, fits, hint=hint)


@dataclass(frozen=True)
class RolloutMeshConfig(MeshConfig):
    """On how many devices a run with rollouts learns, and on which it samples."""

    sampler_devices: int = 0
    """Devices that sample and don't learn, those after the learner's; 0: the learner's sample."""
    sampler_tensor: int = 0
    """Parts that heads, hidden units and the vocabulary are cut into for sampling; rows and their
    cache are cut over the other devices, and weights aren't. 0: as many as mesh.tensor."""

    def topology(self) -> Topology:
        """Take the devices of learner and sampler.

        Raises:
          ConfigError: where there are fewer, or the sampler's don't divide.
        """
        count = self.fsdp * self.tensor
        devices = _devices(count, self.sampler_devices)
        sampler, tensor = devices[count:] or devices, self.sampler_tensor or self.tensor
        for number, whose in (
            (len(sampler), "the sampler's devices"),
            (count, "the learner's devices, which cut what is published"),
        ):
            fits, hint = f"a divisor of {number}, {whose}", "set it, or mesh.tensor where it is 0"
            check(number % tensor == 0, "mesh.sampler_tensor", tensor, fits, hint=hint)
        return Topology(devices[:count], sampler, self.tensor, tensor)


def _devices(count: int, others: int = 0) -> tuple[jax.Device, ...]:
    """Take the learner's devices, and others that sample."""
    what = "mesh.fsdp times mesh.tensor"
    if jax.process_count() > 1:
        return _all_devices(count, what, others)
    return _first_devices(count + others, f"{what} plus mesh.sampler_devices" if others else what)


def _first_devices(count: int, what: str) -> tuple[jax.Device, ...]:
    devices = jax.local_devices()
    most, hint = f"at most {len(devices)}, the devices of this process", "lower one of them"
    if devices[0].platform == "cpu":
        hint += f", or try it out with JAX_NUM_CPU_DEVICES={count}"
    check(count <= len(devices), what, count, most, hint=hint)
    return tuple(devices[:count])


def _all_devices(count: int, what: str, sampler_devices: int) -> tuple[jax.Device, ...]:
    devices, processes = jax.devices(), jax.process_count()
    alone = f"0 in a run of {processes} processes"
    hint = "let the learner's devices sample, or run it in one process that has all devices"
    check(sampler_devices == 0, "mesh.sampler_devices", sampler_devices, alone, hint=hint)
    everyone = f"{len(devices)}, all devices of the {processes} processes"
    check(count == len(devices), what, count, everyone, hint="set both so that it is")
    return tuple(devices)


def whole(mesh: Mesh) -> NamedSharding:
    """Say that an array has a copy on each device."""
    return NamedSharding(mesh, partition_spec((), LEARNER_RULES))


def by_rows(mesh: Mesh) -> NamedSharding:
    """Say that an array over tokens, [A, R, T], is cut by rows."""
    return NamedSharding(mesh, partition_spec((None, "rows"), LEARNER_RULES))


def place_rows(batch: TrainBatch, mesh: Mesh) -> TrainBatch:
    """Place a batch's arrays: those over tokens by rows, numbers on each device.

    Where the mesh has devices of several processes, each places what is theirs of its own, equal
    batch.
    """
    placed: TrainBatch = shard(batch, _row_shardings(batch, mesh))
    return placed


def describe_rows(batch: TrainBatch, mesh: Mesh) -> TrainBatch:
    """Describe the arrays that `place_rows` gives, from descriptions of a batch's."""
    described: TrainBatch = jax.tree.map(
        lambda leaf, sharding: leaf.update(sharding=sharding), batch, _row_shardings(batch, mesh)
    )
    return described


def _row_shardings(batch: TrainBatch, mesh: Mesh) -> Tree:
    return jax.tree.map(lambda leaf: by_rows(mesh) if leaf.ndim else whole(mesh), batch)


def mesh_of(params: Tree) -> Mesh:
    """Give the mesh on which parameters lie, or that of their one device."""
    arrays = [leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, jax.Array)]
    mesh: Mesh | None = next(filter(None, map(_mesh_of, arrays)), None)
    device, *_ = arrays[0].devices() if arrays else jax.local_devices()
    return mesh or Topology((device,), (device,)).learner_mesh


def place_rest(tree: Tree, mesh: Mesh) -> Tree:
    """Put what isn't on the mesh yet on each of its devices, such as an optimizer's count."""

    def placed(leaf: Any) -> Any:
        return leaf if _mesh_of(leaf) == mesh else shard(leaf, whole(mesh))

    return jax.tree.map(placed, tree)


def _mesh_of(leaf: Any) -> Any:
    placed = isinstance(leaf, jax.Array) and isinstance(leaf.sharding, NamedSharding)
    return leaf.sharding.mesh if placed else None
