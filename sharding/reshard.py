"""Moves trees of arrays between shardings, on the same devices or on others.

The values are those of the source, bit for bit, and no buffer is shared with it: the source may
be donated or deleted right after the call.

A plain `device_put` across differently cut meshes gathers every array to the host and blocks.
So, where the devices are not the host itself, arrays are first cut in the target's way by one
jitted program on the source's devices, and then copied between equal shardings.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

Tree = Any
Strategy = Literal["same_devices", "staged", "host"]

_REPLICA = "replica"


def make_reshard(
    source: Mesh,
    shardings: Tree,
    *,
    transform: Callable[[Tree], Tree] | None = None,
    strategy: Strategy | None = None,
) -> Callable[[Tree], Tree]:
    """Make a function that moves a tree from mesh `source` to `shardings`.

    Make it once and use it often: each call of the result reuses the compiled program.

    Args:
      source: the mesh on which the operand lies.
      shardings: a tree of `NamedSharding`s on one target mesh, for `transform`'s result.
      transform: pure, applied on the source's devices before the move, for example a cast,
        which halves what is moved; None moves the tree as it is.
      strategy: None chooses by `choose_strategy`.

    Raises:
      ValueError: for shardings on several meshes, or a strategy that cannot work here.
    """
    target = _only_mesh(shardings)
    strategy = strategy or choose_strategy(source, target)

    def convert(tree: Tree) -> Tree:
        # jit hands an unchanged input on as the same buffer; a copy is always a new one.
        return jax.tree.map(jnp.copy, tree if transform is None else transform(tree))

    if strategy == "same_devices":
        return jax.jit(convert, out_shardings=shardings)
    if strategy == "staged":
        staging = _staging_mesh(source, target)
        staged = jax.tree.map(lambda leaf: NamedSharding(staging, leaf.spec), shardings)
        first_step = jax.jit(convert, out_shardings=staged)
    else:
        first_step = jax.jit(convert)

    def reshard(tree: Tree) -> Tree:
        return jax.device_put(first_step(tree), shardings)

    return reshard


def choose_strategy(source: Mesh, target: Mesh) -> Strategy:
    """Choose the cheapest way from one mesh to another.

    On CPUs the host's memory is the devices' memory, so going through it costs least; so it is
    where the target has more devices than the source, or a number that does not divide it.
    """
    if set(source.devices.flat) == set(target.devices.flat):
        return "same_devices"
    on_cpu = source.devices.flat[0].platform == "cpu"
    return "host" if on_cpu or source.size % target.size else "staged"


def _staging_mesh(source: Mesh, target: Mesh) -> Mesh:
    """The source's devices in the target's shape, with an axis of copies in front."""
    if source.size % target.size:
        raise ValueError(
            f"staging needs a number of target devices that divides {source.size}, those of the "
            f"source, got {target.size}; use the strategy 'host'"
        )
    grid = np.reshape(source.devices, (source.size // target.size, *target.devices.shape))
    names = (_REPLICA, *target.axis_names)
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def _only_mesh(shardings: Tree) -> Mesh:
    meshes = {leaf.mesh for leaf in jax.tree.leaves(shardings)}
    if len(meshes) != 1:
        raise ValueError(f"the shardings must lie on one mesh, got {len(meshes)} meshes")
    mesh: Mesh = meshes.pop()
    return mesh
