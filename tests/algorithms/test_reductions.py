"""Pieces add up to the whole, and nothing masked leaks, not even as NaN."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.reductions import (
    masked_mean,
    masked_sum,
    merge,
    moments,
    no_moments,
    summarise,
)

pairs = st.lists(st.tuples(st.floats(-10, 10, width=32), st.booleans()), min_size=12, max_size=12)


def arrays(drawn):
    values = jnp.array([value for value, _ in drawn], jnp.float32)
    mask = jnp.array([kept for _, kept in drawn])
    return jnp.where(mask, values, jnp.nan), mask


@given(pairs)
def test_merged_pieces_are_the_whole(drawn):
    values, mask = arrays(drawn)
    found = no_moments()
    for piece in (slice(0, 4), slice(4, 8), slice(8, 12)):
        found = merge(found, moments(values[piece], mask[piece]))
    for part, whole in zip(found, moments(values, mask), strict=True):
        np.testing.assert_allclose(part, whole, rtol=1e-5, atol=1e-5)


@given(pairs)
def test_summaries_are_what_their_names_say(drawn):
    values, mask = arrays(drawn)
    count = jnp.sum(mask, dtype=jnp.int32)
    kept = np.asarray(values)[np.asarray(mask)]
    weights = np.abs(kept)
    total = moments(values, mask)
    if len(kept):
        np.testing.assert_allclose(summarise("x", total, count=count), kept.mean(), atol=1e-5)
        assert summarise("x_max", total, count=count) == kept.max()
    else:
        assert [summarise(n, total, count=count) for n in ("x", "x_max", "x_ess")] == [0.0] * 3
    if np.any(weights > 1e-3):
        ess = summarise("x_ess", moments(jnp.abs(values), mask), count=count)
        expected = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
        np.testing.assert_allclose(ess, expected, rtol=1e-4)


def test_law_11_nan_in_masked_places_reaches_no_value_and_no_gradient():
    mask = jnp.array([True, False])
    gradient = jax.grad(lambda x: masked_sum(x * x, mask))(jnp.array([3.0, jnp.nan]))
    np.testing.assert_array_equal(gradient[:1], [6.0])
    assert masked_sum(jnp.array([3.0, jnp.nan]), mask) == 3.0


def test_a_mean_over_nothing_is_zero():
    count = jnp.zeros((), jnp.int32)
    assert masked_mean(jnp.array([jnp.nan]), jnp.array([False]), count=count) == 0.0
