"""Attention within packed rows: of the learner, which has no cache."""

import jax

from .attention import Heads, Sight, attention, packed_mask, within_row
from .layer import Attend


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
        return attention(heads.queries, keys, values, seen, sight=sight), cache

    return attend


def head_major(heads: jax.Array) -> jax.Array:
    """[R, T, K, h] to [R, K, T, h], the order of the cache."""
    return heads.swapaxes(1, 2)
