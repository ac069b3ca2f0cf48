"""Whole pages on the device: copied to others, to the host, and back."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from .cache import LayerCache
from .state import SamplerState


class PageData(NamedTuple):
    """The contents of n pages: arrays on the device, or on the host a `HostArray` for each.

    Attributes:
      caches: [K, n, page, h] per layer.
      tokens: i32[n, page].
      experts: i16[n, page, L, k], where they are recorded.
    """

    caches: list[LayerCache]
    tokens: Any
    experts: Any = None


def extract(state: SamplerState, pages: jax.Array) -> PageData:
    """Read pages i32[n]."""

    def take(pool: jax.Array) -> jax.Array:
        return pool.at[:, pages].get(mode="promise_in_bounds")

    return PageData(
        jax.tree.map(take, state.caches), state.tokens[pages], extract_experts(state, pages)
    )


def extract_experts(state: SamplerState, pages: jax.Array) -> jax.Array | None:
    """Read which experts the tokens of pages i32[n] took; None where that isn't recorded."""
    return None if state.experts is None else state.experts[pages]


def insert(state: SamplerState, pages: jax.Array, data: PageData) -> SamplerState:
    """Write pages i32[n]; the state is donated."""

    def put(pool: jax.Array, some: jax.Array) -> jax.Array:
        return pool.at[:, pages].set(some, mode="promise_in_bounds")

    def put_tokens(pool: jax.Array, some: jax.Array) -> jax.Array:
        return pool.at[pages].set(some)

    caches = jax.tree.map(put, state.caches, data.caches)
    tokens = put_tokens(state.tokens, data.tokens)
    experts = jax.tree.map(put_tokens, state.experts, data.experts)
    return dataclasses.replace(state, caches=caches, tokens=tokens, experts=experts)


def duplicate(state: SamplerState, sources: jax.Array, targets: jax.Array) -> SamplerState:
    """Copy pages i32[n] to others; the state is donated."""
    return insert(state, targets, extract(state, sources))


@dataclasses.dataclass(frozen=True, eq=False)
class HostArray:
    """What is kept on the host of an array that is cut over devices.

    Attributes:
      shape: of the whole array, as are its dtype and sharding.
      parts: of this process's devices, by where each begins; what is missing nobody reads.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Sharding
    parts: dict[tuple[int, ...], np.ndarray]

    def on_device(self) -> jax.Array:
        """Put each part where it was; what is missing becomes zeros."""
        nothing = np.zeros(self.sharding.shard_shape(self.shape), self.dtype)

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None, "all of them are of this process's devices"
            return self.parts.get(_start(index), nothing)

        return jax.make_array_from_callback(self.shape, self.sharding, part)


def to_host(data: PageData, shard: int, shards: int) -> PageData:
    """Copy the pages of one shard to the host: each process what its own devices have of them."""
    first = shard * (len(data.tokens) // shards)
    parts = data.tokens.addressable_shards
    devices = {part.device for part in parts if _start(part.index)[0] == first}
    leaves, structure = jax.tree.flatten(data)
    copies = jax.device_get([_parts(leaf, devices) for leaf in leaves])
    arrays = [
        HostArray(leaf.shape, leaf.dtype, leaf.sharding, parts)
        for leaf, parts in zip(leaves, copies, strict=True)
    ]
    kept: PageData = jax.tree.unflatten(structure, arrays)
    return kept


def to_devices(data: PageData) -> PageData:
    """Put pages from `to_host` back where they were; the other shards' are zeros."""
    put: PageData = jax.tree.map(HostArray.on_device, data)
    return put


def _parts(array: jax.Array, devices: set[jax.Device]) -> dict[tuple[int, ...], jax.Array]:
    own = [part for part in array.addressable_shards if part.device in devices]
    return {_start(part.index): part.data for part in own}


def _start(index: tuple[slice, ...]) -> tuple[int, ...]:
    """Where a part of an array begins."""
    return tuple(along.start or 0 for along in index)
