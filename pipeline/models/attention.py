"""Grouped-query attention with an explicit mask. A query without any key gives finite values."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from .once import once

# Finite, so that a fully masked query is an average instead of NaN.
MASKED_SCORE = -1e30


class Heads(NamedTuple):
    """What a layer has made of its tokens, rotated already.

    Attributes:
      queries: [R, T, H, h].
      keys: [R, T, K, h].
      values: [R, T, K, h].
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array


class Sight(NamedTuple):
    """How a layer's queries look at the keys before them.

    Attributes:
      score_width: scores are divided by its root; None takes the heads' width.
      score_cap: scores become cap * tanh(score / cap); None leaves them.
      window: how many positions a query sees, its own included; None for all. An array, i32[],
        where one compiled layer serves layers that differ in it.
    """

    score_width: float | None = None
    score_cap: float | None = None
    window: int | jax.Array | None = None


PLAIN_SIGHT = Sight()


def attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    *,
    sight: Sight = PLAIN_SIGHT,
) -> jax.Array:
    """Attend; scores and softmax are in f32.

    Within, tokens are the last axis, as in the sampler's stream. So XLA's CPU code makes both
    products and the softmax one kernel, and what they give goes back into the stream in runs of T.

    Args:
      queries: [R, T, H, h].
      keys: [R, K, N, h], head-major as in the cache; H is a multiple of K.
      values: [R, K, N, h].
      mask: bool[R, T, N], true where the query may look; see `within` for windows. Scores beyond
        it must be small beside `MASKED_SCORE`, which is added, and values finite: shares are 0.

    Returns:
      [R, T, H, h].
    """
    rows, length, heads, width = queries.shape
    kv_heads = keys.shape[1]
    scaled = scaled_queries(queries, sight).astype(keys.dtype)
    grouped = scaled.reshape(rows, length, kv_heads, heads // kv_heads, width)
    across = grouped.transpose(0, 2, 4, 3, 1)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = capped(product("rknh,rkhgt->rkngt", keys, across), sight.score_cap)
    seen = jnp.where(mask, 0.0, MASKED_SCORE).swapaxes(1, 2)
    scores = scores + seen[:, None, :, None, :]
    shares = jnp.exp(scores - scores.max(axis=2, keepdims=True))
    mixed = product("rknh,rkngt->rkhgt", values, shares.astype(values.dtype))
    mixed = mixed / shares.sum(axis=2)[:, :, None]
    return mixed.transpose(0, 4, 1, 3, 2).reshape(queries.shape).astype(queries.dtype)


def cached_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    positions: jax.Array,
    *,
    sight: Sight = PLAIN_SIGHT,
) -> jax.Array:
    """Attend with one query a row over the positions up to its own; softmax in f32.

    Both products read the cache in the order in which it lies: hence keys with the positions
    last, in blocks, so that no product has more columns than XLA's CPU code takes without packing
    them first. What stands beyond a row's position is hidden as by the mask of `attention`.

    Args:
      queries: [S, H, h].
      keys: [K, S, W / block, h, block]; H is a multiple of K.
      values: [K, S, W, h].
      positions: i32[S], of the queries; their own keys and values are in the cache.

    Returns:
      [S, H, h].
    """
    rows, heads, width = queries.shape
    kv_heads, _, blocks, _, block = keys.shape
    group, window = heads // kv_heads, blocks * block
    scaled = scaled_queries(queries, sight).astype(keys.dtype)
    grouped = scaled.reshape(rows, kv_heads, group, width).swapaxes(0, 1)
    for_each = jnp.broadcast_to(grouped[:, :, None], (kv_heads, rows, blocks, group, width))
    scores = jnp.einsum("ksbgh,ksbhw->ksbgw", for_each, keys, preferred_element_type=jnp.float32)
    scores = scores.swapaxes(2, 3).reshape(kv_heads, rows, group, window)
    at, own = jnp.arange(window)[None, :], positions[:, None]
    seen = within(at <= own, at, own, sight)
    scores = capped(scores, sight.score_cap)
    scores = scores + jnp.where(seen, 0.0, MASKED_SCORE)[None, :, None, :]
    shares = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = jnp.einsum(
        "ksgw,kswh->ksgh", shares.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    mixed = mixed / shares.sum(axis=-1)[..., None]
    return mixed.transpose(1, 0, 2, 3).reshape(queries.shape).astype(queries.dtype)


def scaled_queries(queries: jax.Array, sight: Sight) -> jax.Array:
    """Divide queries, [..., h], by what scores are divided by; f32."""
    width = sight.score_width or queries.shape[-1]
    scaled: jax.Array = queries.astype(jnp.float32) * width**-0.5
    return scaled


def capped(values: jax.Array, cap: float | None) -> jax.Array:
    """Squash scores or logits into -cap..cap, nearly as they are around 0; None leaves them."""
    return values if cap is None else cap * jnp.tanh(values / cap)


def within(
    mask: jax.Array, key_positions: ArrayLike, query_positions: ArrayLike, sight: Sight
) -> jax.Array:
    """Take out of a causal mask what lies before the window; positions broadcast to its shape."""
    if sight.window is None:
        return mask
    distance = jnp.subtract(query_positions, key_positions)
    return mask & (distance < sight.window)


def within_row(mask: jax.Array, sight: Sight) -> jax.Array:
    """Do that to the mask of packed rows, bool[R, T, T]."""
    index = np.arange(mask.shape[1], dtype=np.int32)
    return within(mask, index[None, None, :], index[None, :, None], sight)


def packed_mask(segment_ids: jax.Array) -> jax.Array:
    """Mask for packed rows: bool[R, T, T], causal within equal, non-zero segment ids [R, T]."""
    index = jnp.arange(segment_ids.shape[1])[None, :]

    def seen(ids: jax.Array, own: jax.Array) -> jax.Array:
        same = ids[:, :, None] == segment_ids[:, None, :]
        return same & (own[:, :, None] >= index[:, None, :]) & (ids != 0)[:, :, None]

    return once(seen, segment_ids, jnp.broadcast_to(index, segment_ids.shape))
