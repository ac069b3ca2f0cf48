"""Weights are bounded constants; the measurements are those of the papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.importance import (
    importance_ratio,
    mismatch,
    truncated_weights,
)

logprob = st.floats(-(2.0**60), 0, width=32)
ordinary = st.floats(-8, 0, width=32)


@given(logprob, logprob, st.floats(0.5, 8, width=32))
def test_weights_are_bounded_and_finite(old, rollout, cap):
    weight = truncated_weights(jnp.float32(old), jnp.float32(rollout), cap=cap)
    assert 0.0 < weight <= np.float32(cap)


@given(ordinary, ordinary)
def test_weights_are_the_papers_formula(old, rollout):
    weight = truncated_weights(jnp.float32(old), jnp.float32(rollout), cap=2.0)
    expected = min(np.exp(np.float64(old) - np.float64(rollout)), 2.0)
    np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_no_gradient_flows_through_weights():
    gradient = jax.grad(lambda x: truncated_weights(x, jnp.float32(-1.0), cap=2.0))(-1.5)
    assert gradient == 0.0


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


def test_mismatch_kl_is_the_divergence_of_the_sampler_from_the_learner():
    rng = np.random.default_rng(0)
    sampler, learner = rng.dirichlet(np.ones(6), 2)
    log_sampler, log_learner = np.log(sampler), np.log(learner)
    found = mismatch(jnp.array(log_learner, jnp.float32), jnp.array(log_sampler, jnp.float32))
    exact = (sampler * (log_sampler - log_learner)).sum()
    np.testing.assert_allclose((sampler * found["mismatch_kl"]).sum(), exact, rtol=1e-4)
    np.testing.assert_allclose(found["mismatch_abs"], abs(log_learner - log_sampler), rtol=1e-4)
    assert np.all(found["mismatch_kl"] >= 0)
