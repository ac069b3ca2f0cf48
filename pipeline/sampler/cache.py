"""The cache on the device: pages of keys and values per layer, and of token ids.

A page holds some positions of one text. Page 0 is a bin: whatever is masked is written there.
What a query must not see, in the bin or left behind by a page's former user, has a score that a
mask makes lowest, and is multiplied by 0; so no number is ever written that is too large for
that, also by weights that are broken.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from ..models.config import StoredWeights
from ..models.model import AttentionShape
from ..models.quantize import activations_dtype
from .pages import BIN

LARGEST = 1e15  # no key of use is nearly as large, and no score of one reaches a masked one
ROWS_AT_ONCE = 2  # whose windows are copied; mostly one row starts, and 8 cost it 8 windows
KEY_BLOCK = 64  # positions of a view's keys that lie together; fewer where a window needs it


class LayerCache(NamedTuple):
    """One layer's keys and values.

    As pages both are [K, P, page, h]. As a view, a window of positions for each row, values
    are [K, S, W, h] and keys [K, S, W / block, h, block]: so attention reads both in order.
    """

    keys: jax.Array
    values: jax.Array


class Cells(NamedTuple):
    """Where positions stand in the pages.

    Attributes:
      pages: i32[...].
      offsets: i32[...], within the page.
    """

    pages: jax.Array
    offsets: jax.Array


def cache_dtype(weights: StoredWeights, platform: str) -> jnp.dtype:
    """Choose the type of keys and values: that of what is computed with, if it can be.

    Not on a CPU, where XLA widens all of a bfloat16 array to write one position into it.
    """
    return jnp.dtype("float32") if platform == "cpu" else activations_dtype(weights)


def allocate(
    attention: AttentionShape, *, pages: int, page_tokens: int, dtype: DTypeLike
) -> list[LayerCache]:
    """Make zeroed caches for all layers: masked attention multiplies what is in them by 0."""
    shape = (attention.num_kv_heads, pages, page_tokens, attention.head_width)
    return [
        LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        for _ in range(attention.num_layers)
    ]


def cells(tables: jax.Array, positions: jax.Array, valid: jax.Array, page_tokens: int) -> Cells:
    """Find positions in block tables; what isn't valid is in the bin.

    Args:
      tables: i32[S, n].
      positions: i32[S, C].
      valid: bool[S, C].
    """
    slot = jnp.clip(positions // page_tokens, 0, tables.shape[1] - 1)
    pages = jnp.take_along_axis(tables, slot, axis=1)
    return Cells(jnp.where(valid, pages, BIN), positions % page_tokens)


def write(cache: LayerCache, new: LayerCache, where: Cells) -> LayerCache:
    """Write positions into pages.

    Args:
      new: [K, S, C, h] each.
      where: of [S, C].
    """

    def put(pages: jax.Array, some: jax.Array) -> jax.Array:
        at = pages.at[:, where.pages, where.offsets]
        return at.set(bounded(some.astype(pages.dtype)), mode="promise_in_bounds")

    return LayerCache(put(cache.keys, new.keys), put(cache.values, new.values))


def bounded(x: jax.Array) -> jax.Array:
    """The same numbers, with 0 for NaN and what isn't below `LARGEST`."""
    return jnp.where(jnp.abs(x) < LARGEST, x, jnp.zeros((), x.dtype))


def gather(cache: LayerCache, tables: jax.Array) -> LayerCache:
    """Copy the pages of block tables [S, n] to windows, all [K, S, n * page, h]."""

    def take(pages: jax.Array) -> jax.Array:
        heads, _, size, width = pages.shape
        seen = pages.at[:, tables].get(mode="promise_in_bounds")
        return seen.reshape(heads, tables.shape[0], tables.shape[1] * size, width)

    return LayerCache(take(cache.keys), take(cache.values))


def view(cache: LayerCache, tables: jax.Array) -> LayerCache:
    """Make a view of the pages of block tables [S, n]."""
    seen = gather(cache, tables)
    return LayerCache(blocked(seen.keys), seen.values)


def blocked(keys: jax.Array) -> jax.Array:
    """Put keys [K, S, W, h] in the order of views: [K, S, W / block, h, block]."""
    heads, rows, window, width = keys.shape
    block = math.gcd(window, KEY_BLOCK)
    return keys.reshape(heads, rows, window // block, block, width).swapaxes(3, 4)


def new_views(caches: list[LayerCache], rows: int, window: int) -> list[LayerCache]:
    """Make zeroed views for pages like these; finite, as masked attention needs them."""

    def make(pages: LayerCache) -> LayerCache:
        heads, _, _, width = pages.keys.shape
        shape = (heads, rows, window, width)
        return LayerCache(
            blocked(jnp.zeros(shape, pages.keys.dtype)), jnp.zeros(shape, pages.values.dtype)
        )

    return [make(pages) for pages in caches]


def refresh(
    caches: list[LayerCache], views: list[LayerCache], tables: jax.Array, stale: jax.Array
) -> list[LayerCache]:
    """Copy the windows of the stale rows, bool[S], out of the pages; the others cost nothing.

    Args:
      tables: i32[S, n], as long as the views' windows.
    """
    rows = len(stale)
    at_once = min(ROWS_AT_ONCE, rows)
    order = jnp.nonzero(stale, size=rows + at_once, fill_value=rows)[0].astype(jnp.int32)
    count = stale.sum(dtype=jnp.int32)

    def goes_on(carry: tuple[jax.Array, list[LayerCache]]) -> jax.Array:
        return carry[0] < count

    def copy_some(carry: tuple[jax.Array, list[LayerCache]]) -> tuple[jax.Array, list[LayerCache]]:
        first, views = carry
        some = lax.dynamic_slice_in_dim(order, first, at_once)
        pages = tables.at[some].get(mode="clip")

        def put(seen: jax.Array, windows: jax.Array) -> jax.Array:
            return seen.at[:, some].set(windows, mode="drop")

        new = [view(cache, pages) for cache in caches]
        return first + at_once, jax.tree.map(put, views, new)

    _, views = lax.while_loop(goes_on, copy_some, (jnp.int32(0), views))
    return views


def append(seen: LayerCache, new: LayerCache, positions: jax.Array) -> LayerCache:
    """Write one position of every row into a view; positions outside it are dropped.

    Args:
      new: [K, S, h] each.
      positions: i32[S].
    """
    row = jnp.arange(positions.shape[0])
    block, offset = _place_in_blocks(seen, positions)
    new_keys = bounded(new.keys.astype(seen.keys.dtype)).swapaxes(0, 1)
    new_values = bounded(new.values.astype(seen.values.dtype))
    keys = seen.keys.at[:, row, block, :, offset].set(new_keys, mode="drop")
    values = seen.values.at[:, row, positions].set(new_values, mode="drop")
    return LayerCache(keys, values)


def take_positions(seen: LayerCache, positions: jax.Array) -> LayerCache:
    """Some positions i32[S, C] of every row of a view: [K, S, C, h] each."""
    row = jnp.arange(positions.shape[0])[:, None]
    block, offset = _place_in_blocks(seen, positions)
    keys = seen.keys.at[:, row, block, :, offset].get(mode="clip")  # [S, C, K, h]
    values = seen.values.at[:, row, positions].get(mode="clip")
    return LayerCache(jnp.moveaxis(keys, 2, 0), values)


def _place_in_blocks(seen: LayerCache, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The blocks of a view's keys where positions are, and the places in these."""
    return jnp.divmod(positions, seen.keys.shape[-1])
