"""Weights are bounded constants of the papers, at every level; NumPy oracles, one by one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.algorithms.config import ImportanceConfig
from headrace.pipeline.algorithms.importance import (
    importance_ratio,
    importance_weights,
    interpolated_logprobs,
    sequence_ratio,
    staleness_weights,
)
from tests.algorithms.rows import IDS, MASK, draw, sequences
from tests.learner.toy import quick_jit

LEVELS = ("none", "token", "geometric", "sequence")
every_level = pytest.mark.parametrize("level", LEVELS)
seeds = st.integers(0, 2**16)


@partial(quick_jit, static_argnums=1)
def weights_of(log_ratio, config):
    return importance_weights(log_ratio, MASK, IDS, config=config)


def oracle_ratio(log_ratio, level):
    """Sequence by sequence, in float64."""
    ratio = np.ones(log_ratio.shape)
    for place in sequences():
        x = np.asarray(log_ratio, np.float64)[place]
        reduced = {
            "none": np.zeros_like(x),
            "token": x,
            "geometric": np.full_like(x, x.mean()),
            "sequence": np.full_like(x, x.sum()),
        }
        ratio[place] = np.exp(reduced[level])
    return ratio


@pytest.mark.parametrize("mask_level", LEVELS)
@every_level
@given(seeds)
@settings(max_examples=5)
def test_weights_are_the_papers_formulas(level, mask_level, seed):
    log_ratio = 0.5 * draw(seed)
    config = ImportanceConfig(weights=level, cap=1.5, mask=mask_level, mask_low=0.7, mask_high=1.4)
    found = weights_of(np.where(MASK, log_ratio, np.float32(0.0)), config)
    ratio, guard = oracle_ratio(log_ratio, level), oracle_ratio(log_ratio, mask_level)
    inside = (guard >= 0.7) & (guard <= 1.4)
    expected = np.minimum(ratio, 1.5) * inside
    np.testing.assert_allclose(found.used[MASK], expected[MASK], rtol=1e-4)
    np.testing.assert_allclose(found.ratio[MASK], ratio[MASK], rtol=1e-4)
    np.testing.assert_array_equal(found.masked[MASK], ~inside[MASK])
    np.testing.assert_array_equal(found.clipped[MASK], (ratio > 1.5)[MASK])
    assert not np.any(np.asarray(found.masked)[~MASK])


@every_level
def test_on_policy_data_has_weights_of_exactly_one(level):
    config = ImportanceConfig(weights=level, mask=level)
    found = weights_of(np.zeros(MASK.shape, np.float32), config)
    np.testing.assert_array_equal(found.used, np.ones(MASK.shape))


@partial(quick_jit, static_argnums=1)
def used_and_slope(log_ratio, config):
    def total(log_ratio):
        used = importance_weights(log_ratio, MASK, IDS, config=config).used
        return used.sum(), used

    slope, used = jax.grad(total, has_aux=True)(log_ratio)
    return used, slope


@every_level
@pytest.mark.parametrize("extreme", [-1e30, -300.0, 300.0, 1e30])
def test_weights_are_bounded_and_finite_and_without_gradient(level, extreme):
    config = ImportanceConfig(weights=level, cap=3.0)

    log_ratio = np.where(MASK, np.float32(extreme), np.float32(0.0))
    weights, slope = used_and_slope(log_ratio, config)
    assert np.all((weights >= 0) & (weights <= 3.0))
    np.testing.assert_array_equal(slope, np.zeros(MASK.shape))


def test_the_ratio_has_the_gradient_of_the_policy_gradient():
    ratio = importance_ratio(jnp.float32(-1.0), jnp.float32(-1.0))
    gradient = jax.grad(importance_ratio)(jnp.float32(-1.0), jnp.float32(-1.0))
    assert (ratio, gradient) == (1.0, 1.0)


@pytest.mark.parametrize("difference", [-1e30, -300.0, 300.0, 1e30])
def test_ratio_and_gradient_stay_finite_for_extreme_logprobs(difference):
    ratio, gradient = jax.value_and_grad(importance_ratio)(
        jnp.float32(difference), jnp.float32(0.0)
    )
    assert np.isfinite(ratio)
    assert gradient == 0.0


def test_the_token_form_has_the_value_and_the_gradient_of_the_sequence_s_ratio():
    old = draw(1) - 1.0
    logprobs = np.where(MASK, old + 0.3 * draw(2), np.float32(0.0))
    old = np.where(MASK, old, np.float32(0.0))

    def of_tokens(logprobs):
        ratio = sequence_ratio(logprobs, old, MASK, IDS)
        return sum(ratio[place].mean() for place in sequences())

    def of_sequences(logprobs):  # GSPO's equation 7, differentiated as it stands
        return sum(jnp.exp((logprobs - old)[place].mean()) for place in sequences())

    found, gradient = quick_jit(jax.value_and_grad(of_tokens))(logprobs)
    expected, expected_gradient = quick_jit(jax.value_and_grad(of_sequences))(logprobs)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


def test_older_tokens_weigh_less():
    lags = jnp.array([0, 1, 3], jnp.int32)
    np.testing.assert_allclose(staleness_weights(lags, power=1.0), [1, 1 / 2, 1 / 4])
    np.testing.assert_allclose(staleness_weights(lags, power=0.5), [1, 2**-0.5, 0.5], rtol=1e-6)
    np.testing.assert_array_equal(staleness_weights(lags, power=0.0), np.ones(3))


def test_the_interpolated_policy_is_the_present_one_at_lag_0_and_the_sampler_s_at_lag_1():
    logprobs, rollout = jnp.array([-1.0] * 4), jnp.array([-2.0] * 4)
    lags = jnp.array([0, 1, 2, 4], jnp.int32)
    found = interpolated_logprobs(logprobs, rollout, lags)
    np.testing.assert_array_equal(found, [-1.0, -2.0, -1.5, -1.25])
    gradient = jax.grad(lambda x: interpolated_logprobs(x, rollout, lags).sum())(logprobs)
    np.testing.assert_array_equal(gradient, np.zeros(4))


def test_sequences_of_one_row_do_not_touch_each_other():
    log_ratio = np.where(MASK, draw(3), np.float32(0.0))
    config = ImportanceConfig(weights="sequence", mask="geometric", cap=1e6)
    before = weights_of(log_ratio, config)
    first, *others = sequences()
    changed = log_ratio.copy()
    changed[first] += 0.25
    after = weights_of(changed, config)
    assert not np.any(np.asarray(before.ratio)[first] == np.asarray(after.ratio)[first])
    for place in others:
        np.testing.assert_array_equal(before.ratio[place], after.ratio[place])
