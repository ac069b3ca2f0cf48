"""Conformance 21: a divergence that does not regularise, or overflows.

On a vocabulary of six tokens every expectation is an exact sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.algorithms import divergences
from headrace.pipeline.algorithms.divergences import k2, k3
from tests.learner.toy import quick_jit

RNG = np.random.default_rng(3)
LOGITS = jnp.array(RNG.normal(size=6), jnp.float32)
REF = jax.nn.log_softmax(jnp.array(RNG.normal(size=6), jnp.float32))


def expected_gradient(estimate, at=LOGITS):
    """The mean over tokens drawn from the policy of the gradient of the estimate as a loss."""
    drawn = jax.nn.softmax(at)  # the draw is not differentiated

    def mean(logits):
        return jnp.sum(drawn * estimate(jax.nn.log_softmax(logits), REF))

    return jax.grad(mean)(at)


def reverse_kl(logits):
    logprobs = jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(logprobs) * (logprobs - REF))


def forward_kl(logits):
    return jnp.sum(jnp.exp(REF) * (REF - jax.nn.log_softmax(logits)))


def k1(logprobs, ref_logprobs):
    return logprobs - ref_logprobs


k1_penalties = quick_jit(divergences.k1_penalties)
gradient_in_the_mean = quick_jit(expected_gradient, static_argnums=0)


def test_k3_has_the_exact_gradient_of_the_forward_divergence():
    np.testing.assert_allclose(
        gradient_in_the_mean(k3), quick_jit(jax.grad(forward_kl))(LOGITS), atol=1e-6
    )


def test_k2_has_the_exact_gradient_of_the_reverse_divergence():
    np.testing.assert_allclose(
        gradient_in_the_mean(k2), quick_jit(jax.grad(reverse_kl))(LOGITS), atol=1e-6
    )


def test_k1_has_no_expected_gradient_and_so_is_not_a_loss():
    np.testing.assert_allclose(gradient_in_the_mean(k1), np.zeros(6), atol=1e-6)


def test_k3_estimates_the_reverse_divergence_without_bias():
    logprobs = jax.nn.log_softmax(LOGITS)
    mean = jnp.sum(jnp.exp(logprobs) * k3(logprobs, REF))
    np.testing.assert_allclose(mean, reverse_kl(LOGITS), rtol=1e-5)


@pytest.mark.parametrize("estimate", [k2, k3])
def test_descending_a_divergence_reaches_the_reference(estimate):
    def descend(_, logits):
        return logits - 0.5 * expected_gradient(estimate, logits)

    logits = quick_jit(lambda start: jax.lax.fori_loop(0, 1000, descend, start))(LOGITS)
    np.testing.assert_allclose(jax.nn.softmax(logits), jnp.exp(REF), atol=5e-3)


@pytest.mark.parametrize("logprob", [-1e4, -500.0, 0.0])
@pytest.mark.parametrize("ref", [-1e4, -500.0, 0.0])
def test_extreme_logprobs_stay_finite(logprob, ref):
    value, gradient = jax.value_and_grad(k3)(jnp.float32(logprob), jnp.float32(ref))
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    assert value >= 0


def test_k1_as_a_penalty_on_the_reward_has_the_exact_gradient_of_the_reverse_divergence():
    """One token a sequence: what REINFORCE climbs with a reward of -k1."""
    logprobs = jax.nn.log_softmax(LOGITS)
    ids = jnp.arange(6, dtype=jnp.int32)  # six sequences of one token each
    penalties = k1_penalties(logprobs, REF, ids)

    def objective(logits):
        return jnp.sum(jnp.exp(logprobs) * penalties * jax.nn.log_softmax(logits))

    np.testing.assert_allclose(
        quick_jit(jax.grad(objective))(LOGITS), quick_jit(jax.grad(reverse_kl))(LOGITS), atol=1e-6
    )


def test_penalties_are_added_up_to_the_end_of_their_sequence():
    old, ref = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.zeros(4)
    found = k1_penalties(old, ref, jnp.array([1, 1, 1, 2], jnp.int32))
    np.testing.assert_array_equal(found, [6.0, 5.0, 3.0, 4.0])
