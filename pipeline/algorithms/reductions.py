"""Sums over the tokens that count, with denominators that the caller gives.

Invariant: a value where the mask is false reaches neither a result nor a gradient, not even
as NaN or infinity. Hence `where` comes before any multiplication (0 * NaN is NaN). And a mean
never divides by the size of the piece at hand: pieces add up to the same total however the
batch was split.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Moments(NamedTuple):
    """What a per-token measurement leaves behind of a piece of a batch.

    Attributes:
      total: sum over the counted tokens.
      square: sum of squares.
      largest: maximum; -inf where no token counts.
    """

    total: jax.Array
    square: jax.Array
    largest: jax.Array


def keep(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Replace the values where the mask is false by 0, in value and in gradient."""
    return jnp.where(mask, values, jnp.zeros_like(values))


def masked_sum(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Sum the values where the mask is true.

    Example:
      >>> float(masked_sum(jnp.array([1.0, jnp.nan]), jnp.array([True, False])))
      1.0
    """
    return jnp.sum(keep(values, mask))


def masked_mean(values: jax.Array, mask: jax.Array, *, count: jax.Array) -> jax.Array:
    """Divide the sum of the counted values by a global count.

    Args:
      values: f32[...].
      mask: bool[...].
      count: i32[] or f32[], the counted tokens of the *whole* batch; 0 gives 0.
    """
    return masked_sum(values, mask) / denominator(count)


def denominator(count: jax.Array) -> jax.Array:
    """Turn a count into a number that is safe to divide by: at least 1, float32."""
    return jnp.maximum(count, 1).astype(jnp.float32)


def moments(values: jax.Array, mask: jax.Array) -> Moments:
    """Reduce a per-token measurement of one piece of a batch."""
    kept = keep(values, mask)
    lowest = jnp.full_like(values, -jnp.inf)
    return Moments(jnp.sum(kept), jnp.sum(kept * kept), jnp.max(jnp.where(mask, values, lowest)))


def no_moments() -> Moments:
    """Give the moments of nothing: the neutral element of `merge`."""
    zero = jnp.zeros((), jnp.float32)
    return Moments(zero, zero, jnp.full((), -jnp.inf, jnp.float32))


def merge(left: Moments, right: Moments) -> Moments:
    """Combine the moments of two disjoint pieces."""
    return Moments(
        left.total + right.total,
        left.square + right.square,
        jnp.maximum(left.largest, right.largest),
    )


def summarise(name: str, found: Moments, *, count: jax.Array) -> jax.Array:
    """Turn the moments of a measurement into one finite number; its name says which.

    `…_max` is the maximum, `…_ess` the effective sample size of weights as a share of the
    tokens, `(sum w)^2 / (n sum w^2)` (Kish 1965), anything else the mean over the tokens.

    Args:
      count: the counted tokens of the whole batch; 0 gives 0.
    """
    if name.endswith("_max"):
        return jnp.where(count > 0, found.largest, 0.0)
    if name.endswith("_ess"):
        square = jnp.where(found.square > 0, found.square, 1.0)
        return found.total * found.total / (denominator(count) * square)
    return found.total / denominator(count)
