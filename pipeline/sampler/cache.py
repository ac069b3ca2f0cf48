"""Keys and values of every row and layer, contiguous: [S, K, T, h], head-major.

A write never touches a row that isn't named, and a masked write touches nothing: its index
lies outside and is dropped. What a row's former user left behind is never attended to,
since a query looks only at positions up to its own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..models.config import ModelConfig
from .config import SamplerConfig


class LayerCache(NamedTuple):
    """One layer's keys and values: f32[S, K, T, h] each."""

    keys: jax.Array
    values: jax.Array


def allocate(config: SamplerConfig, model: ModelConfig) -> list[LayerCache]:
    """Make zeroed caches for all layers: masked attention multiplies what is in them by 0."""
    shape = (config.rows, model.num_kv_heads, config.cache_tokens, model.head_width)
    return [
        LayerCache(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))
        for _ in range(model.num_layers)
    ]


def append(
    cache: LayerCache, new: LayerCache, positions: jax.Array, active: jax.Array
) -> LayerCache:
    """Write one position of every active row.

    Args:
      cache: the whole cache of a layer.
      new: [S, K, h] each.
      positions: i32[S].
      active: bool[S]; the others write nothing.
    """
    rows, _, length, _ = cache.keys.shape
    row = jnp.arange(rows)
    position = jnp.where(active, positions, length)

    def write(old: jax.Array, one: jax.Array) -> jax.Array:
        return old.at[row, :, position].set(one, mode="drop")

    return LayerCache(write(cache.keys, new.keys), write(cache.values, new.values))


def fill(cache: LayerCache, new: LayerCache, rows: jax.Array, starts: jax.Array) -> LayerCache:
    """Write one chunk of C positions into each of R rows.

    Args:
      cache: the whole cache of a layer; T is a multiple of C.
      new: [R, K, C, h] each.
      rows: i32[R]; a row number outside the cache writes nothing.
      starts: i32[R], multiples of C.
    """
    size = new.keys.shape[2]
    chunk = starts // size

    def write(old: jax.Array, some: jax.Array) -> jax.Array:
        count, heads, length, width = old.shape
        chunked = old.reshape(count, heads, length // size, size, width)
        return chunked.at[rows, :, chunk].set(some, mode="drop").reshape(old.shape)

    return LayerCache(write(cache.keys, new.keys), write(cache.values, new.values))


def read(cache: LayerCache, window: int, rows: jax.Array | None = None) -> LayerCache:
    """The first `window` positions of some rows (of all rows, in order, for None)."""

    def take(old: jax.Array) -> jax.Array:
        seen = old[:, :, :window]
        return seen if rows is None else jnp.take(seen, rows, axis=0, mode="clip")

    return LayerCache(take(cache.keys), take(cache.values))
