"""Pieces add up to the whole, and nothing masked leaks, not even as NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.algorithms.reductions import (
    Measured,
    masked_sum,
    merge,
    nothing_like,
    summarise,
    sums,
)

pairs = st.lists(st.tuples(st.floats(-10, 10, width=32), st.booleans()), min_size=12, max_size=12)
NAMES = ("x", "x_max", "x_min", "x_ess", "x_pearson")


def arrays(drawn):
    values = jnp.array([value for value, _ in drawn], jnp.float32)
    mask = jnp.array([kept for _, kept in drawn])
    return jnp.where(mask, values, jnp.nan), mask


def measured(name, values, mask):
    """Two sides that differ for a correlation, the values alone for the rest."""
    both = jnp.stack([values, jnp.sin(values) + values])
    return Measured(both if name == "x_pearson" else values, mask)


@given(pairs)
@settings(max_examples=15)
def test_merged_pieces_are_the_whole(drawn):
    values, mask = arrays(drawn)
    for name in NAMES:
        whole = sums(name, measured(name, values, mask))
        found = nothing_like(whole)
        for piece in (slice(0, 4), slice(4, 8), slice(8, 12)):
            found = merge(found, sums(name, measured(name, values[piece], mask[piece])))
        assert found.keys() == whole.keys()
        for key in found:
            np.testing.assert_allclose(found[key], whole[key], rtol=1e-5, atol=1e-5)


@given(pairs)
@settings(max_examples=15)
def test_summaries_are_what_their_names_say(drawn):
    values, mask = arrays(drawn)
    kept = np.asarray(values, np.float64)[np.asarray(mask)]
    found = {name: summarise(name, sums(name, measured(name, values, mask))) for name in NAMES}
    if not len(kept):
        assert list(found.values()) == [0.0] * len(NAMES)
        return
    np.testing.assert_allclose(found["x"], kept.mean(), atol=1e-5)
    assert (found["x_max"], found["x_min"]) == (kept.max(), kept.min())
    if np.any(np.abs(kept) > 1e-3):
        expected = kept.sum() ** 2 / (len(kept) * (kept**2).sum())
        np.testing.assert_allclose(found["x_ess"], expected, rtol=1e-4, atol=1e-5)
    if kept.std() > 0.1:
        expected = np.corrcoef(kept, np.sin(kept) + kept)[0, 1]
        np.testing.assert_allclose(found["x_pearson"], expected, atol=2e-3)


@pytest.mark.parametrize("shift", [0.0, 0.9])
def test_equal_rows_correlate_exactly_and_a_constant_one_with_nothing(shift):
    row = shift + 0.01 * jnp.linspace(0.0, 1.0, 9)
    mask = jnp.ones(9, bool)

    def correlation(*rows):
        return summarise("p_pearson", sums("p_pearson", Measured(jnp.stack(rows), mask)))

    np.testing.assert_allclose(correlation(row, row), 1.0, atol=1e-6)
    assert correlation(row, jnp.ones_like(row)) == 0.0


def test_law_11_nan_in_masked_places_reaches_no_value_and_no_gradient():
    mask = jnp.array([True, False])
    gradient = jax.grad(lambda x: masked_sum(x * x, mask))(jnp.array([3.0, jnp.nan]))
    np.testing.assert_array_equal(gradient[:1], [6.0])
    assert masked_sum(jnp.array([3.0, jnp.nan]), mask) == 3.0
