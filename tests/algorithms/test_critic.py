"""Generalised advantages and value losses equal oracles written as the paper's recursions."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.algorithms import critic
from tests.algorithms.rows import IDS, MASK, draw, sequences
from tests.learner.toy import quick_jit

gae = quick_jit(critic.gae, static_argnames=("discount", "trace"))
value_loss = quick_jit(critic.value_loss, static_argnames="clip")
whitened = quick_jit(critic.whitened)


@pytest.mark.parametrize(("discount", "trace"), [(1.0, 0.95), (0.9, 0.8), (0.9, 0.0), (1.0, 1.0)])
def test_gae_is_the_papers_recursion_over_counted_tokens(discount, trace):
    rewards, values = draw(0), draw(1)
    found = gae(rewards, values, MASK, IDS, discount=discount, trace=trace)
    expected = np.zeros(IDS.shape)
    for place in sequences():
        r, v = (np.asarray(array, np.float64)[place] for array in (rewards, values))
        later_value = later_advantage = 0.0
        advantages = []
        for reward, value in zip(r[::-1], v[::-1], strict=True):
            error = reward + discount * later_value - value
            later_advantage = error + discount * trace * later_advantage
            later_value = value
            advantages.insert(0, later_advantage)
        expected[place] = advantages
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_with_lambda_1_the_returns_are_the_discounted_rewards():
    rewards = np.where(MASK, draw(2), np.float32(0.0))
    advantages = gae(rewards, draw(3), MASK, IDS, discount=1.0, trace=1.0)
    returns = np.asarray(advantages + draw(3))
    for place in sequences():
        to_go = np.cumsum(np.asarray(rewards)[place][::-1])[::-1]
        np.testing.assert_allclose(returns[place], to_go, rtol=1e-4, atol=1e-5)


def test_law_11_nan_where_nothing_counts_reaches_no_advantage():
    def poison(array):
        return np.where(MASK, array, np.float32(np.nan))

    clean = gae(draw(0), draw(1), MASK, IDS)
    np.testing.assert_array_equal(gae(poison(draw(0)), poison(draw(1)), MASK, IDS), clean)
    np.testing.assert_array_equal(whitened(poison(draw(0)), MASK), whitened(draw(0), MASK))


def test_the_value_loss_is_pessimistic_beyond_its_clip():
    values, old, returns = (np.asarray(draw(seed), np.float64) for seed in (4, 5, 6))
    plain = 0.5 * (values - returns) ** 2
    near = old + np.clip(values - old, -0.2, 0.2)
    expected = np.maximum(plain, 0.5 * (near - returns) ** 2)
    operands = draw(4), draw(5), draw(6)
    np.testing.assert_allclose(value_loss(*operands, clip=0.2), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value_loss(*operands, clip=0.0), plain, rtol=1e-4, atol=1e-6)
    # A value that has moved beyond the clip towards its return learns no more.
    slope = jax.grad(
        partial(critic.value_loss, old_values=jnp.float32(0.0), returns=jnp.float32(2.0), clip=0.2)
    )
    assert slope(jnp.float32(1.0)) == 0.0
    assert slope(jnp.float32(0.1)) < 0.0


def test_whitened_values_have_mean_0_and_deviation_1():
    kept = np.asarray(whitened(3.0 + 2.0 * draw(7), MASK))[MASK]
    np.testing.assert_allclose((kept.mean(), kept.std()), (0.0, 1.0), atol=1e-3)
