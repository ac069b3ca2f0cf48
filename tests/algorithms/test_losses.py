"""Losses are elementwise, ignore what is masked, and equal NumPy oracles from the papers."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.algorithms.losses import AlgorithmConfig, LossInputs, grpo_loss, sft_loss
from headrace.pipeline.errors import ConfigError

CONFIG = AlgorithmConfig(entropy_bonus=0.01, kl_coefficient=0.1)
LOSSES = {"grpo": partial(grpo_loss, config=CONFIG), "sft": sft_loss}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def make_inputs(seed=0, length=12):
    rng = np.random.default_rng(seed)
    names = ("logprobs", "entropy", "old_logprobs", "rollout_logprobs", "ref_logprobs")
    drawn = {name: -1.0 + 0.4 * rng.normal(size=length) for name in names}
    drawn["advantages"] = rng.normal(size=length)
    arrays = {name: jnp.array(value, jnp.float32) for name, value in drawn.items()}
    return LossInputs(**arrays, loss_mask=jnp.array(rng.random(length) < 0.6))


def total(learnt, inputs, loss):
    logprobs, entropy = learnt
    return loss(inputs._replace(logprobs=logprobs, entropy=entropy))[0].sum()


@partial(jax.jit, static_argnums=1)
def value_and_gradients(inputs, loss):
    return jax.value_and_grad(total)((inputs.logprobs, inputs.entropy), inputs, loss)


@given(st.integers(0, 2**16))
def test_grpo_is_the_papers_formula(seed):
    inputs = make_inputs(seed)
    lp, entropy, old, rollout, ref, advantages, mask = (np.asarray(x, np.float64) for x in inputs)
    ratio, weights = np.exp(lp - old), np.minimum(np.exp(old - rollout), 2.0)
    gain = np.minimum(ratio * advantages, np.clip(ratio, 0.8, 1.28) * advantages)
    divergence = np.exp(ref - lp) - (ref - lp) - 1
    expected = (-weights * gain - 0.01 * entropy + 0.1 * divergence) * mask
    found, measured = LOSSES["grpo"](inputs)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)
    high = (ratio > 1.28) & (advantages > 0)
    np.testing.assert_array_equal(np.asarray(measured["clipped_high"]) * mask, high * mask)
    low = (ratio < 0.8) & (advantages < 0)
    np.testing.assert_array_equal(np.asarray(measured["clipped_low"]) * mask, low * mask)


def test_sft_is_the_weighted_negative_log_likelihood():
    inputs = make_inputs()
    expected = -np.asarray(inputs.advantages * inputs.logprobs) * np.asarray(inputs.loss_mask)
    np.testing.assert_allclose(sft_loss(inputs)[0], expected, rtol=1e-6)


@every_loss
@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf, -1e30, 5.0])
def test_law_11_what_is_masked_changes_no_loss_and_no_gradient(loss, poison):
    inputs = make_inputs()
    mask = inputs.loss_mask
    changed = LossInputs(
        *(jnp.where(mask, array, poison) for array in inputs[:-1]), loss_mask=mask
    )
    value, gradients = value_and_gradients(inputs, loss)
    poisoned_value, poisoned_gradients = value_and_gradients(changed, loss)
    assert value == poisoned_value
    for gradient, poisoned in zip(gradients, poisoned_gradients, strict=True):
        np.testing.assert_array_equal(gradient, poisoned)


@every_loss
def test_conformance_14_what_counts_does_change_the_loss(loss):
    inputs = make_inputs()
    index = int(np.flatnonzero(np.asarray(inputs.loss_mask))[0])
    changed = inputs._replace(advantages=inputs.advantages.at[index].add(1.0))
    assert value_and_gradients(inputs, loss)[0] != value_and_gradients(changed, loss)[0]


@every_loss
def test_a_loss_is_elementwise(loss):
    inputs = make_inputs()
    order = np.random.default_rng(1).permutation(len(inputs.logprobs))
    shuffled = LossInputs(*(array[order] for array in inputs))
    np.testing.assert_array_equal(loss(shuffled)[0], loss(inputs)[0][order])


@every_loss
@pytest.mark.parametrize("extreme", [-1e4, -200.0, 0.0])
def test_conformance_21_extreme_logprobs_stay_finite(loss, extreme):
    inputs = make_inputs()._replace(logprobs=jnp.full(12, extreme, jnp.float32))
    value, (gradient, _) = value_and_gradients(inputs, loss)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient))


def test_clipping_stops_the_gradient_only_on_the_side_that_overshoots():
    plain = partial(grpo_loss, config=AlgorithmConfig())

    def gradient(ratio, advantage):
        inputs = make_inputs(length=1)._replace(
            logprobs=jnp.log(jnp.array([ratio], jnp.float32)),
            old_logprobs=jnp.zeros(1),
            rollout_logprobs=jnp.zeros(1),
            advantages=jnp.array([advantage], jnp.float32),
            loss_mask=jnp.array([True]),
        )
        return float(value_and_gradients(inputs, plain)[1][0][0])

    assert gradient(1.3, 1.0) == 0.0
    assert gradient(0.7, -1.0) == 0.0
    assert gradient(1.3, -1.0) > 0.0
    assert gradient(0.7, 1.0) < 0.0
    assert gradient(1.25, 1.0) < 0.0  # clip-higher: still inside


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("clip_low", 1.0),
        ("clip_high", -0.1),
        ("entropy_bonus", -1.0),
        ("kl_coefficient", float("nan")),
        ("importance_cap", 0.0),
    ],
)
def test_impossible_settings_name_value_range_and_flag(field, value):
    with pytest.raises(ConfigError, match=rf"{field} must be .*got {value}.*--algorithm\."):
        AlgorithmConfig(**{field: value})
