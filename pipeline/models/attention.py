"""Grouped-query attention with an explicit mask. A query without any key gives finite values."""

import jax
import jax.numpy as jnp

# Finite, so that a fully masked query is an average instead of NaN.
MASKED_SCORE = -1e30


def attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array
) -> jax.Array:
    """Attend; scores and softmax are in f32.

    Args:
      queries: [R, T, H, h].
      keys: [R, K, N, h], head-major as in the cache; H is a multiple of K.
      values: [R, K, N, h].
      mask: bool[R, T, N], true where the query may look.

    Returns:
      [R, T, H, h].
    """
    rows, length, heads, width = queries.shape
    kv_heads = keys.shape[1]
    grouped = queries.reshape(rows, length, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum(
        "rtkgh,rknh->rkgtn", grouped, keys, preferred_element_type=jnp.float32
    ) / jnp.sqrt(jnp.float32(width))
    scores = jnp.where(mask[:, None, None, :, :], scores, MASKED_SCORE)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.einsum("rkgtn,rknh->rtkgh", weights, values)
    return mixed.reshape(rows, length, heads, width)


def cached_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, positions: jax.Array
) -> jax.Array:
    """Attend with one query a row over the positions up to its own; softmax in f32.

    Both products read the cache in the order in which it lies: hence keys with the positions
    last. What stands beyond a row's position must be finite; it is multiplied by 0.

    Args:
      queries: [S, H, h].
      keys: [K, S, h, W]; H is a multiple of K.
      values: [K, S, W, h].
      positions: i32[S], of the queries; their own keys and values are in the cache.

    Returns:
      [S, H, h].
    """
    rows, heads, width = queries.shape
    kv_heads, _, _, window = keys.shape
    scaled = queries.astype(jnp.float32) * width**-0.5
    grouped = scaled.astype(keys.dtype).reshape(rows, kv_heads, heads // kv_heads, width)
    scores = jnp.einsum("skgh,kshw->ksgw", grouped, keys, preferred_element_type=jnp.float32)
    seen = jnp.arange(window)[None, :] <= positions[:, None]
    scores = scores + jnp.where(seen, 0.0, MASKED_SCORE)[None, :, None, :]
    shares = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = jnp.einsum(
        "ksgw,kswh->ksgh", shares.astype(values.dtype), values, preferred_element_type=jnp.float32
    )
    mixed = mixed / shares.sum(axis=-1)[..., None]
    return mixed.transpose(1, 0, 2, 3).reshape(queries.shape).astype(queries.dtype)


def packed_mask(segment_ids: jax.Array) -> jax.Array:
    """Mask for packed rows: bool[R, T, T], causal within equal, non-zero segment ids [R, T]."""
    length = segment_ids.shape[1]
    index = jnp.arange(length)
    causal = index[None, :, None] >= index[None, None, :]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return causal & same & (segment_ids != 0)[:, :, None]
