"""Attention within packed rows: of the learner, which has no cache."""

import jax
import jax.numpy as jnp

from .attention import Heads, Sight, attention, packed_mask, within_row
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
        keys, values = head_major(heads.keys), head_major(heads.values)
        seen = within_row(mask, sight)
        blocks = [
            attention(
                heads.queries[:, start:end],
                keys[:, :, :end],
                values[:, :, :end],
                seen[:, start:end, :end],
                sight=sight,
            )
            for start, end in query_blocks(segment_ids.shape[1])
        ]
        return jnp.concatenate(blocks, axis=1), cache

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
