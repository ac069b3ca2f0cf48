"""Sums over the sequences that are packed in a row, without comparing tokens in pairs.

Invariant: a result belongs to one segment and depends on its values only. The segments of a
row are runs of equal ids (`pack` makes them so), which a scan of log T steps adds up in an
order that no device changes; a scatter would be shorter, and on some devices random in the
last bits.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Pair = tuple[jax.Array, jax.Array]

_scan: Callable[..., Pair] = jax.lax.associative_scan


def discounted_to_go(values: jax.Array, discounts: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Solve `y_t = v_t + d_t y_{t+1}` in each segment, from its last token backwards.

    Args:
      values: f32[..., T], finite; 0 where a token doesn't count.
      discounts: f32[..., T], finite; that of a segment's last token has no effect.
      segment_ids: i32[..., T], runs of equal numbers.

    Example:
      >>> ids, half = jnp.array([1, 1, 2, 2, 2]), jnp.full(5, 0.5)
      >>> discounted_to_go(jnp.array([1.0, 2.0, 3.0, 4.0, 8.0]), half, ids).tolist()
      [2.0, 2.0, 7.0, 8.0, 8.0]
    """
    within = jnp.where(_ends(segment_ids), 0.0, discounts)
    operands = (within, values)
    _, totals = _scan(_later_then_earlier, operands, reverse=True, axis=values.ndim - 1)
    return totals


def sum_to_go(values: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Add up the values of each segment from each token, that token included, to its end."""
    return discounted_to_go(values, jnp.ones_like(values), segment_ids)


def segment_sum(values: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Give every token the sum of its whole segment, as a constant: no gradient flows.

    Args:
      values: f32[..., T], finite; 0 where a token doesn't count.
      segment_ids: i32[..., T], runs of equal numbers.

    Example:
      >>> ids = jnp.array([1, 1, 2, 2, 2])
      >>> segment_sum(jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]), ids).tolist()
      [3.0, 3.0, 12.0, 12.0, 12.0]
    """
    to_go = sum_to_go(jax.lax.stop_gradient(values), segment_ids)
    return jnp.take_along_axis(to_go, _first_places(segment_ids), axis=-1)


def segment_mean(values: jax.Array, mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Give every token the mean over the counted tokens of its segment, as a constant.

    Args:
      values: f32[..., T], 0 where the mask is false.
      mask: bool[..., T]; a segment without counted tokens gets 0.
    """
    counted = segment_sum(mask.astype(jnp.float32), segment_ids)
    return segment_sum(values, segment_ids) / jnp.maximum(counted, 1.0)


def last_counted(mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Mark one token of each segment that has a counted one: the last of them, bool[..., T]."""
    return mask & (sum_to_go(mask.astype(jnp.float32), segment_ids) == 1.0)


def next_in_segment(values: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Give every token the next token's value, 0 where its segment ends."""
    moved = jnp.concatenate([values[..., 1:], jnp.zeros_like(values[..., :1])], axis=-1)
    return jnp.where(_ends(segment_ids), jnp.zeros_like(values), moved)


def _later_then_earlier(later: Pair, earlier: Pair) -> Pair:
    """Join two neighbouring pieces: discounts through them, and totals of them."""
    (later_discount, later_total), (discount, total) = later, earlier
    return discount * later_discount, total + discount * later_total


def _ends(segment_ids: jax.Array) -> jax.Array:
    last = jnp.ones_like(segment_ids[..., :1], dtype=bool)
    return jnp.concatenate([segment_ids[..., 1:] != segment_ids[..., :-1], last], axis=-1)


def _first_places(segment_ids: jax.Array) -> jax.Array:
    """Give every token the place of its segment's first token, i32[..., T]."""
    first = jnp.ones_like(segment_ids[..., :1], dtype=bool)
    starts = jnp.concatenate([first, segment_ids[..., 1:] != segment_ids[..., :-1]], axis=-1)
    places = jnp.where(starts, jnp.arange(segment_ids.shape[-1], dtype=jnp.int32), 0)
    return jax.lax.cummax(places, axis=places.ndim - 1)
