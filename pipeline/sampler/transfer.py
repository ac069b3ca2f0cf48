"""Whole pages on the device: copied to others, to the host, and back."""

import dataclasses
from typing import Any, NamedTuple

import jax

from .cache import LayerCache
from .state import SamplerState


class PageData(NamedTuple):
    """The contents of n pages, on the device or on the host.

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
