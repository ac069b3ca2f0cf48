"""Moves trees of arrays between shardings, on the same devices or on others.

The values are those of the source, bit for bit, and no buffer is shared with it: the source may
be donated or deleted right after the call.

A plain `device_put` across differently cut meshes gathers every array to the host and blocks.
So, where the devices are not the host itself, arrays are first cut in the target's way by one
jitted program on the source's devices; then each part is copied from a device that has it.
"""

import math
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
    like: Tree | None = None,
) -> Callable[[Tree], Tree]:
    """Make a function that moves a tree from mesh `source` to `shardings`.

    Make it once and use it often: each call of the result reuses the compiled program.

    Args:
      source: the mesh on which the operand lies.
      shardings: a tree of `NamedSharding`s on one target mesh, for `transform`'s result.
      transform: pure, applied on the source's devices before the move, for example a cast,
        which halves what is moved; None moves the tree as it is.
      strategy: None chooses by `choose_strategy`.
      like: an operand, of which only shapes and placement are used, to compile for now and for
        nothing else; None compiles at the first call.

    Raises:
      ValueError: for shardings on several meshes, or a strategy that cannot work here.
    """
    _only_mesh(shardings)
    strategy = strategy or choose_strategy(source, shardings)

    def convert(tree: Tree) -> Tree:
        # jit hands an unchanged input on as the same buffer; a copy is always a new one.
        return jax.tree.map(jnp.copy, tree if transform is None else transform(tree))

    def compiled(places: Tree) -> Callable[[Tree], Tree]:
        first_step = jax.jit(convert, out_shardings=places)
        return first_step if like is None else first_step.lower(like).compile()

    if strategy == "same_devices":
        return compiled(shardings)
    if strategy == "staged":
        staging = _staging_mesh(source, shardings)
        staged = jax.tree.map(lambda leaf: NamedSharding(staging, leaf.spec), shardings)
        first_step = compiled(staged)
    else:
        first_step = compiled(None)

    def reshard(tree: Tree) -> Tree:
        return jax.device_put(first_step(tree), shardings)

    return reshard


def choose_strategy(source: Mesh, shardings: Tree) -> Strategy:
    """Choose the cheapest way from a mesh to shardings on another.

    On CPUs the host's memory is the devices' memory, so going through it costs least; so it is
    where the source's devices can't be divided among the parts that the target wants.
    """
    target = _only_mesh(shardings)
    if set(source.devices.flat) == set(target.devices.flat):
        return "same_devices"
    on_cpu = source.devices.flat[0].platform == "cpu"
    uneven = source.size % math.prod(_cut(shardings).values())
    return "host" if on_cpu or uneven else "staged"


def _staging_mesh(source: Mesh, shardings: Tree) -> Mesh:
    """The source's devices along the axes that the target cuts, and one of copies in front."""
    cut = _cut(shardings)
    parts = math.prod(cut.values())
    if source.size % parts:
        raise ValueError(
            f"staging needs a number of parts that divides {source.size}, the devices of the "
            f"source, got {parts}, {cut}; use the strategy 'host'"
        )
    grid = np.reshape(source.devices, (source.size // parts, *cut.values()))
    names = (_REPLICA, *cut)
    return Mesh(grid, names, axis_types=(AxisType.Auto,) * len(names))


def _cut(shardings: Tree) -> dict[str, int]:
    """Name the target's axes along which some array is cut, and their sizes."""
    specs = [leaf.spec for leaf in jax.tree.leaves(shardings)]
    entries = [entry for spec in specs for entry in spec if entry is not None]
    used = {name for it in entries for name in ((it,) if isinstance(it, str) else it)}
    return {name: size for name, size in _only_mesh(shardings).shape.items() if name in used}


def _only_mesh(shardings: Tree) -> Mesh:
    meshes = {leaf.mesh for leaf in jax.tree.leaves(shardings)}
    if len(meshes) != 1:
        raise ValueError(f"the shardings must lie on one mesh, got {len(meshes)} meshes")
    mesh: Mesh = meshes.pop()
    return mesh
