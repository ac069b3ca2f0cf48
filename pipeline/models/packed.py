"""Attention within packed rows: of the learner, which has no cache."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .attention import MASKED_SCORE, Heads, Sight, capped, packed_mask, within_row
from .layer import Attend

# Queries are cut into blocks, each of which looks at the keys up to its own end only: four blocks
# leave out three eighths of the products, and more would compile longer.
MOST_BLOCKS = 4
SMALLEST_BLOCK = 64


def attend_packed(segment_ids: jax.Array) -> Attend[None]:
    """Make the `attend` of packed rows, which have no cache: it hands on what it is given.

    A model that is written over `attend` is thereby both, `forward` and `Cached.forward`.

    Args:
      segment_ids: i32[R, T], as for `Forward`.
    """
    mask = packed_mask(segment_ids)

    def attend(cache: None, heads: Heads, sight: Sight) -> tuple[jax.Array, None]:
        seen = within_row(mask, sight)
        return row_attention(heads, seen, sight._replace(window=None)), cache

    return attend


def query_blocks(length: int) -> list[tuple[int, int]]:
    """Cut a row into blocks: where each starts and ends.

    Example:
      >>> query_blocks(40), query_blocks(100), query_blocks(1000)
      ([(0, 40)], [(0, 64), (64, 100)], [(0, 250), (250, 500), (500, 750), (750, 1000)])
    """
    size = max(SMALLEST_BLOCK, -(-length // MOST_BLOCKS))
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def head_major(heads: jax.Array) -> jax.Array:
    """[R, T, K, h] to [R, K, T, h], the order of the cache."""
    return heads.swapaxes(1, 2)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def row_attention(heads: Heads, mask: jax.Array, sight: Sight) -> jax.Array:
    """Attend as `attention` does, with keys and values in the order of the queries.

    The backward pass is written out: that of `attention` turned scores round, which are its
    largest arrays, and took twice as long on CPU.

    Args:
      mask: bool[R, T, T], true where the query may look: nowhere behind itself.
      sight: its window is in the mask.

    Returns:
      [R, T, H, h]; 0, and no gradient, for a query that sees nothing.
    """
    return _attend_blocks(heads, mask, sight)[0]


class _Block(NamedTuple):
    """What the backward pass finds of a block of queries: m are its queries and their groups.

    Attributes:
      queries: [R, K, m, h].
      shares: f32[R, K, m, N], not yet divided by their sum.
      share: f32[R, K, m, 1], one divided by it; 0 for a query that sees nothing.
      mixed: [R, K, m, h].
      slope: f32[R, K, m, N], of the scores' cap; None without one.
    """

    queries: jax.Array
    shares: jax.Array
    share: jax.Array
    mixed: jax.Array
    slope: jax.Array | None


def _attend_blocks(heads: Heads, mask: jax.Array, sight: Sight) -> tuple[jax.Array, Any]:
    keys, values = head_major(heads.keys), head_major(heads.values)
    rows, length, kv_heads, _ = heads.keys.shape
    blocks = []
    for start, end in query_blocks(length):
        queries = _grouped(heads.queries[:, start:end], kv_heads)
        product = _product("rkmh,rknh->rkmn", queries, keys[:, :, :end])
        scores = capped(product * _scale(sight, keys), sight.score_cap)
        slope = None if sight.score_cap is None else 1.0 - jnp.square(scores / sight.score_cap)
        seen = mask[:, None, None, start:end, :end]
        by_group = scores.reshape(rows, kv_heads, -1, end - start, end)
        scores = jnp.where(seen, by_group, MASKED_SCORE).reshape(scores.shape)
        highest = scores.max(axis=-1, keepdims=True)
        shares = jnp.exp(scores - highest)
        share = jnp.where(highest > MASKED_SCORE, 1.0 / shares.sum(axis=-1, keepdims=True), 0.0)
        mixed = _product("rkmn,rknh->rkmh", shares.astype(values.dtype), values[:, :, :end])
        mixed = (mixed * share).astype(values.dtype)
        blocks.append(_Block(queries, shares, share, mixed, slope))
    parts = [_ungrouped(block.mixed, heads.queries.shape) for block in blocks]
    return jnp.concatenate(parts, axis=1), (keys, values, blocks)


def _attend_backward(
    sight: Sight, kept: tuple[jax.Array, jax.Array, list[_Block]], gradient: jax.Array
) -> tuple[Heads, None]:
    """Dao et al., FlashAttention (2022), appendix B.2."""
    keys, values, blocks = kept
    length, scale = keys.shape[2], _scale(sight, keys)
    of_queries, of_keys, of_values = [], jnp.zeros(()), jnp.zeros(())
    for (start, end), block in zip(query_blocks(length), blocks, strict=True):
        of_mixed = _grouped(gradient[:, start:end], keys.shape[1])
        of_mixed = of_mixed.astype(jnp.float32) * block.share
        shift = (of_mixed * block.mixed.astype(jnp.float32)).sum(axis=-1, keepdims=True)
        of_mixed = of_mixed.astype(values.dtype)
        of_shares = _product("rkmh,rknh->rkmn", of_mixed, values[:, :, :end])
        of_scores = block.shares * (of_shares - shift)
        of_scores = of_scores if block.slope is None else of_scores * block.slope
        of_scores, shares = of_scores.astype(keys.dtype), block.shares.astype(values.dtype)
        found = _product("rkmn,rknh->rkmh", of_scores, keys[:, :, :end])
        of_queries.append(_ungrouped((found * scale).astype(keys.dtype), gradient.shape))
        unseen = [(0, 0), (0, 0), (0, length - end), (0, 0)]
        found = _product("rkmn,rkmh->rknh", of_scores, block.queries)
        of_keys = of_keys + jnp.pad(found, unseen)
        found = _product("rkmn,rkmh->rknh", shares, of_mixed)
        of_values = of_values + jnp.pad(found, unseen)
    keys_values = (head_major(found).astype(keys.dtype) for found in (of_keys * scale, of_values))
    return Heads(jnp.concatenate(of_queries, axis=1), *keys_values), None


row_attention.defvjp(_attend_blocks, _attend_backward)


def _product(product: str, first: jax.Array, second: jax.Array) -> jax.Array:
    return jnp.einsum(product, first, second, preferred_element_type=jnp.float32)


def _scale(sight: Sight, keys: jax.Array) -> float:
    return 1.0 / math.sqrt(sight.score_width or keys.shape[-1])


def _grouped(heads: jax.Array, kv_heads: int) -> jax.Array:
    """[R, T, H, h] to [R, K, m, h]: all queries of a kv head's group in one line."""
    rows, length, count, width = heads.shape
    by_group = heads.reshape(rows, length, kv_heads, count // kv_heads, width)
    return by_group.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, width)


def _ungrouped(grouped: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Undo `_grouped`, for heads of a shape [R, any, H, h]."""
    rows, _, count, width = shape
    kv_heads = grouped.shape[1]
    by_group = grouped.reshape(rows, kv_heads, count // kv_heads, -1, width)
    return by_group.transpose(0, 3, 1, 2, 4).reshape(rows, -1, count, width)
