"""Whole pages on the device: copied to others, to the host, and back."""

import dataclasses
from typing import Any, NamedTuple

import jax

from .cache import LayerCache
from .state import SamplerState


class PageData(NamedTuple):
    """The contents of n pages: [K, n, page, h] per layer, and i32[n, page]."""

    caches: list[LayerCache]
    tokens: Any  # of the device or of the host


def extract(state: SamplerState, pages: jax.Array) -> PageData:
    """Read pages i32[n]."""

    def take(pool: jax.Array) -> jax.Array:
        return pool.at[:, pages].get(mode="promise_in_bounds")

    return PageData(jax.tree.map(take, state.caches), state.tokens[pages])


def insert(state: SamplerState, pages: jax.Array, data: PageData) -> SamplerState:
    """Write pages i32[n]; the state is donated."""

    def put(pool: jax.Array, some: jax.Array) -> jax.Array:
        return pool.at[:, pages].set(some, mode="promise_in_bounds")

    caches = jax.tree.map(put, state.caches, data.caches)
    return dataclasses.replace(
        state, caches=caches, tokens=state.tokens.at[pages].set(data.tokens)
    )


def duplicate(state: SamplerState, sources: jax.Array, targets: jax.Array) -> SamplerState:
    """Copy pages i32[n] to others; the state is donated."""
    return insert(state, targets, extract(state, sources))
