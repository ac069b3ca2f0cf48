"""A token from a distribution and one number: the right token, by key and position only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.sampler.inverse_cdf import (
    BLOCK,
    draw_from_mass,
    most_likely,
    nth_set,
    uniforms,
)
from tests.learner.toy import quick_jit

draw = jax.jit(draw_from_mass)
VOCABS = [1, 5, BLOCK, 300]  # below a block, one block, not a multiple of it


def one_level(mass: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The oracle: one running sum over the whole vocabulary, in float64.

    Also says how near the target was to a boundary, as a share of the mass.
    """
    sums = np.cumsum(mass.astype(np.float64), axis=-1)
    shares = sums / sums[:, -1:]
    distance = np.abs(shares - uniform[:, None]).min(axis=-1)
    return (shares <= uniform[:, None]).sum(axis=-1), distance


@settings(max_examples=40)
@given(st.sampled_from(VOCABS), st.integers(0, 2**31))
def test_two_levels_equal_one_level(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mass = np.exp(3 * rng.standard_normal((64, vocab))).astype(np.float32)
    mass[rng.random(mass.shape) < 0.3] = 0
    mass[:, rng.integers(vocab)] = 1
    uniform = rng.random(64, np.float32)
    expected, distance = one_level(mass, uniform)
    clear = distance > 1e-5
    np.testing.assert_array_equal(np.asarray(draw(mass, uniform))[clear], expected[clear])
    assert vocab < 3 or clear.sum() > 32


@settings(max_examples=60)
@given(st.sampled_from(VOCABS), st.integers(0, 2**31))
def test_a_token_of_probability_zero_is_never_drawn(vocab: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mass = (10.0 ** rng.uniform(-30, 0, (64, vocab))).astype(np.float32)
    mass[rng.random(mass.shape) < 0.9] = 0
    mass[np.arange(64), rng.integers(0, vocab, 64)] = 1
    sums = np.cumsum(mass, axis=-1)
    on_boundary = sums[np.arange(64), rng.integers(0, vocab, 64)] / sums[:, -1]
    highest = np.float32(1 - 2**-24)
    uniform = np.concatenate([[0, highest], np.minimum(on_boundary[2:], highest)])
    token = np.asarray(draw(mass, uniform.astype(np.float32)))
    assert (token >= 0).all()
    assert (token < vocab).all()
    assert (mass[np.arange(64), token] > 0).all()


def test_law_18_uniforms_are_distinct_for_distinct_keys_and_positions() -> None:
    members, positions = 24, 40
    key, position = np.divmod(np.arange(members * positions), positions)
    keys = np.stack([key, key % 3], axis=1).astype(np.uint32)
    drawn = np.asarray(uniforms(keys, position.astype(np.int32)))
    assert len(np.unique(drawn)) == len(drawn)
    assert ((drawn >= 0) & (drawn < 1)).all()
    grid = drawn.reshape(members, positions)
    correlation = np.corrcoef(grid) - np.eye(members)
    assert np.abs(correlation).max() < 0.7


def test_a_uniform_is_that_of_the_folded_key_whatever_the_row() -> None:
    keys = np.array([[1, 2], [3, 4], [1, 2]], np.uint32)
    positions = np.array([5, 5, 6], np.int32)
    drawn = uniforms(keys, positions)
    for row in range(3):
        key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(keys[row])), positions[row])
        assert drawn[row] == jax.random.uniform(key)
    np.testing.assert_array_equal(drawn[::-1], uniforms(keys[::-1], positions[::-1]))


@pytest.mark.parametrize("vocab", VOCABS)
def test_the_most_likely_token_is_the_lowest_id_of_the_highest_logit(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.integers(-3, 3, (40, vocab)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[0] = -np.inf
    np.testing.assert_array_equal(quick_jit(most_likely)(logits), logits.argmax(axis=-1))


@pytest.mark.parametrize("vocab", VOCABS)
def test_the_nth_set_flag_is_found(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    flags = rng.random((60, vocab)) < 0.3
    flags[:, rng.integers(vocab)] = True
    count = rng.integers(1, flags.sum(axis=-1) + 3)  # some beyond the last one
    set_ = [np.flatnonzero(row) for row in flags]
    expected = [ids[min(n, len(ids)) - 1] for ids, n in zip(set_, count, strict=True)]
    found = quick_jit(nth_set)(jnp.asarray(flags), count.astype(np.float32))
    np.testing.assert_array_equal(found, expected)
