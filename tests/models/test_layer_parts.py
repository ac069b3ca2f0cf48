"""The parts of a layer whose backward passes are written out, against those that JAX makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.gated import ACTIVATIONS, gated
from headrace.pipeline.models.norms import rms_norm

R, T, D, EPS = 2, 3, 5, 1e-5


def plain_norm(x, weight, axis):
    wide = x.astype(jnp.float32)
    across = weight[None, None, :] if axis == -1 else weight[:, None, None]
    mean = jnp.mean(jnp.square(wide), axis=axis, keepdims=True)
    return (wide / jnp.sqrt(mean + EPS) * across).astype(x.dtype)


def pulled_back(function, *operands):
    """What a function gives, and its gradients for a random gradient."""
    result, pull_back = jax.vjp(function, *operands)
    gradient = np.random.default_rng(1).normal(size=result.shape).astype(np.float32)
    return result, *pull_back(jnp.asarray(gradient, result.dtype))


def assert_close(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        both = (np.asarray(array, np.float32) for array in (one, other))
        np.testing.assert_allclose(*both, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2)])
@settings(max_examples=6)
@given(st.sampled_from([-1, 0]), st.integers(0, 2**31))
def test_a_norm_has_the_gradients_of_its_formula(dtype, tolerance, axis, seed):
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(0, 2, (R, T, D) if axis == -1 else (D, R, T)), dtype)
    weight = jnp.asarray(rng.normal(size=D), jnp.float32)
    found = pulled_back(lambda *both: rms_norm(*both, EPS, axis), x, weight)
    assert_close(found, pulled_back(lambda *both: plain_norm(*both, axis), x, weight), tolerance)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=3)
@given(st.integers(0, 2**31))
def test_a_gated_product_has_the_gradients_of_its_formula(activation, seed):
    draw = np.random.default_rng(seed).normal
    gate, up = (jnp.asarray(draw(0, 3, (R, T, D)), jnp.float32) for _ in range(2))
    found = pulled_back(lambda *both: gated(activation, *both), gate, up)
    assert_close(
        found, pulled_back(lambda gate, up: ACTIVATIONS[activation](gate) * up, gate, up), 1e-5
    )
