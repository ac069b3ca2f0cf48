"""Trees of arrays on a mesh: from logical axes to shardings, and arrays placed by them.

Placing changes where an array's parts lie, never a value.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .rules import Rules, partition_spec

Tree = Any


def tree_shardings(axes: Tree, mesh: Mesh, rules: Rules) -> Tree:
    """Turn a tree of logical axes into a tree of shardings.

    Args:
      axes: a tree whose leaves are tuples of logical axis names, as in
        `{"embedding": ("vocab", "width"), "norm": ("width",)}`.
      mesh: has every mesh axis that the rules name for these axes.
      rules: see `partition_spec`.

    Returns:
      The same tree of `NamedSharding`s.
    """

    def sharding(leaf: tuple[str | None, ...]) -> NamedSharding:
        return NamedSharding(mesh, partition_spec(leaf, rules))

    return jax.tree.map(sharding, axes, is_leaf=_is_axes)


def tree_specs(axes: Tree, rules: Rules) -> Tree:
    """Turn a tree of logical axes into the same tree of `PartitionSpec`s."""

    def spec(leaf: tuple[str | None, ...]) -> PartitionSpec:
        return partition_spec(leaf, rules)

    return jax.tree.map(spec, axes, is_leaf=_is_axes)


def replicated(tree: Tree, mesh: Mesh) -> Tree:
    """Give every leaf the sharding that puts a whole copy on each device."""
    return jax.tree.map(lambda _: NamedSharding(mesh, partition_spec((), {})), tree)


def shard(tree: Tree, shardings: Tree) -> Tree:
    """Place host or single-device arrays by the shardings, a tree like theirs or a prefix.

    The result may share memory with `tree`; to move arrays between meshes see `reshard`. Where a
    mesh has devices of several processes, all must call this, with equal arrays: each places the
    parts of its own devices, and nothing is sent.
    """
    if all(each.is_fully_addressable for each in jax.tree.leaves(shardings)):
        return jax.device_put(tree, shardings)

    def placed(sharding: NamedSharding, part: Tree) -> Tree:
        return jax.tree.map(partial(_place_own, sharding=sharding), part)

    return jax.tree.map(placed, shardings, tree)


def on_host(tree: Tree, *, keep: bool = True) -> Tree:
    """Copy arrays to the host, whole.

    Where they lie on devices of several processes all must call this, and each gets the copies:
    those that no process has whole are gathered, one after the other.

    Args:
      keep: false: this process only takes part, and gets None in each array's place.

    Example:
      >>> on_host({"w": jax.numpy.ones(3)})
      {'w': array([1., 1., 1.], dtype=float32)}
    """

    def copied(leaf: Any) -> Any:
        view = host_view(leaf)
        return np.array(view) if keep else None

    return jax.tree.map(copied, tree)


def host_view(leaf: Any) -> np.ndarray:
    """Give one array on the host, whole, as `on_host`, but where possible without a copy."""
    whole = not isinstance(leaf, jax.Array) or leaf.is_fully_addressable
    if whole or leaf.is_fully_replicated:
        return np.asarray(leaf)
    return _gathered(leaf)


def _gathered(array: jax.Array) -> np.ndarray:
    """Gather an array; a stack of matrices one by one, so that no device ever has all of it."""
    is_stack = array.ndim > 2 and array.sharding.shard_shape(array.shape)[0] == len(array)
    if not is_stack:
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    whole = np.empty(array.shape, array.dtype)
    for index in range(len(array)):
        whole[index] = multihost_utils.process_allgather(array[index], tiled=True)
    return whole


def _place_own(leaf: Any, *, sharding: NamedSharding) -> Any:
    """Place the parts of this process's devices."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return jax.device_put(leaf, sharding)  # all processes move their parts together
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def init_sharded(init: Callable[..., Tree], shardings: Tree, *operands: Any) -> Tree:
    """Run `init(*operands)` so that each device makes only its own shards.

    No device ever holds a whole array that is cut. With the default, partitionable random bits
    the values do not depend on the mesh.
    """
    return jax.jit(init, out_shardings=shardings)(*operands)


def _is_axes(node: Any) -> bool:
    return isinstance(node, tuple) and all(isinstance(name, str | None) for name in node)
