"""How a token is drawn: the right distribution, by key and position only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.sampler.logits import BLOCK, draw_from_mass, pick, uniforms

draw = jax.jit(draw_from_mass)
pick_jit = jax.jit(pick)
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


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    count, logits = 20_000, np.array([0.0, 1.5, -1.0, 0.7, 2.0, -0.4], np.float32)
    keys = np.stack([np.arange(count), np.full(count, 9)], axis=1).astype(np.uint32)
    draws = pick_jit(
        np.tile(logits, (count, 1)),
        keys,
        np.arange(count, dtype=np.int32) % 7,
        np.full(count, temperature, np.float32),
    )
    probability = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    observed = np.bincount(draws.token, minlength=6)
    expected = count * probability
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 20.5  # 5 degrees of freedom: a probability of 0.001
    np.testing.assert_allclose(
        draws.logprob, np.log(probability)[draws.token], rtol=1e-5, atol=1e-5
    )


def test_temperature_zero_takes_the_most_likely_token_and_its_unscaled_logprob() -> None:
    logits = np.array([[0.0, 3.0, 1.0], [5.0, -1.0, 4.9]], np.float32)
    keys, positions = np.zeros((2, 2), np.uint32), np.zeros(2, np.int32)
    draws = pick_jit(logits, keys, positions, np.zeros(2, np.float32))
    np.testing.assert_array_equal(draws.token, [1, 0])
    expected = logits.max(-1) - np.log(np.exp(logits).sum(-1))
    np.testing.assert_allclose(draws.logprob, expected, rtol=1e-5)


def test_excluded_tokens_are_never_drawn_and_extreme_logits_stay_finite() -> None:
    logits = np.full((200, 5), -np.inf, np.float32)
    logits[:, 3], logits[:, 1] = 3e4, 3e4 - 1
    keys = np.arange(400, dtype=np.uint32).reshape(200, 2)
    draws = pick_jit(logits, keys, np.zeros(200, np.int32), np.ones(200, np.float32))
    assert set(np.asarray(draws.token).tolist()) == {1, 3}
    assert np.isfinite(draws.logprob).all()


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
