"""Measurements over the tokens that count, summed piece by piece.

Invariant: a value where the mask is false reaches neither a result nor a gradient, not even
as NaN or infinity. Hence `where` comes before any multiplication (0 * NaN is NaN). And a
measurement is summed first and divided last: pieces add up to the same however the batch was
split.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

Sums = dict[str, jax.Array]


class Measured(NamedTuple):
    """A measurement per token.

    Attributes:
      values: f32[...], or f32[2, ...] for the two sides of a correlation.
      mask: bool[...], the tokens that it is about; elsewhere the values may be anything.
    """

    values: jax.Array
    mask: jax.Array


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


def sums(name: str, measured: Measured) -> Sums:
    """Reduce a measurement of one piece of a batch to what its name asks for.

    A name that ends in `_max` or `_min` asks for the extreme; in `_ess` for the effective sample
    size of weights, as a share of the tokens; in `_pearson` for the correlation of two rows of
    values; any other name for the mean.
    """
    values, mask = measured
    if name.endswith("_max"):
        return {"largest": jnp.max(jnp.where(mask, values, -jnp.inf))}
    if name.endswith("_min"):
        return {"smallest": jnp.min(jnp.where(mask, values, jnp.inf))}
    count = jnp.sum(mask, dtype=jnp.float32)
    kept = keep(values, jnp.broadcast_to(mask, values.shape))
    if name.endswith("_pearson"):
        # The variance of the difference, since equal rows must correlate exactly.
        three = jnp.stack([kept[0], kept[1], kept[0] - kept[1]]).reshape(3, -1)
        return {"count": count, "total": three.sum(-1), "square": (three * three).sum(-1)}
    if name.endswith("_ess"):
        return {"count": count, "total": jnp.sum(kept), "square": jnp.sum(kept * kept)}
    return {"count": count, "total": jnp.sum(kept)}


def nothing_like(found: Sums) -> Sums:
    """Give the sums of nothing, of the same shapes: what `merge` leaves as it is."""
    start = {"largest": -jnp.inf, "smallest": jnp.inf}
    return {
        key: jnp.full(array.shape, start.get(key, 0.0), jnp.float32)
        for key, array in found.items()
    }


def merge(left: Sums, right: Sums) -> Sums:
    """Combine the sums of two disjoint pieces."""
    join = {"largest": jnp.maximum, "smallest": jnp.minimum}
    return {key: join.get(key, jnp.add)(left[key], right[key]) for key in left}


def summarise(name: str, found: Sums) -> jax.Array:
    """Turn the sums of a measurement into one finite number; over no token it is 0.

    Reference: Kish 1965, Survey sampling (effective sample size, `(sum w)^2 / (n sum w^2)`).
    """
    if name.endswith(("_max", "_min")):
        (extreme,) = found.values()
        return jnp.where(jnp.isfinite(extreme), extreme, 0.0)
    count = jnp.maximum(found["count"], 1.0)
    if name.endswith("_pearson"):
        return _correlation(found["total"] / count, found["square"] / count)
    if name.endswith("_ess"):
        square = jnp.where(found["square"] > 0, found["square"], 1.0)
        return found["total"] * found["total"] / (count * square)
    return found["total"] / count


def _correlation(mean: jax.Array, mean_square: jax.Array) -> jax.Array:
    """Correlate x and y from the moments of x, y and x - y; 0 where one of them is constant."""
    x, y, difference = jnp.maximum(mean_square - mean * mean, 0.0)
    scale = jnp.sqrt(x * y)
    usable = jnp.where(scale > 0, scale, 1.0)
    return jnp.where(scale > 0, 0.5 * (x + y - difference) / usable, 0.0)
