"""Products of narrow floats, with sums in float32, forward and backward."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.products import summed_in_float32

R, T, D, F = 2, 3, 5, 4
NARROW = jnp.bfloat16


@jax.jit
def run(x, matrix, weights):
    result, pull_back = jax.vjp(summed_in_float32, x, matrix)
    return result, pull_back(weights)


def rounded(array):
    return np.asarray(jnp.asarray(array, NARROW).astype(jnp.float32))


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_operands_are_narrow_sums_are_exact_and_gradients_are_rounded_once(seed):
    rng = np.random.default_rng(seed)
    x, matrix, weights = (
        rounded(rng.normal(size=shape)) for shape in ((R, T, D), (D, F), (R, T, F))
    )
    result, (of_x, of_matrix) = run(x.astype(NARROW), matrix.astype(NARROW), weights)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, x @ matrix, atol=1e-5)
    for found, exact in (
        (of_x, weights @ matrix.T),
        (of_matrix, x.reshape(-1, D).T @ weights.reshape(-1, F)),
    ):
        assert found.dtype == NARROW
        np.testing.assert_allclose(rounded(found), exact, rtol=2**-8, atol=1e-5)


def test_no_operand_is_kept_for_the_gradient_of_a_frozen_matrix():
    x, matrix = jnp.ones((R, T, D), NARROW), jnp.ones((D, F), NARROW)
    _, both = jax.vjp(summed_in_float32, x, matrix)
    _, of_x = jax.vjp(lambda x: summed_in_float32(x, matrix), x)
    assert {leaf.shape for leaf in jax.tree.leaves(both)} == {x.shape, matrix.shape}
    assert {leaf.shape for leaf in jax.tree.leaves(of_x)} == {matrix.shape}


def test_the_gradient_can_be_differentiated_forward():
    x = jnp.linspace(-1.0, 1.0, 6).reshape(3, 2).astype(NARROW)
    matrix = jnp.linspace(-1.0, 1.0, 10).reshape(2, 5).astype(NARROW)

    def slopes(run, x):
        return jax.grad(lambda x: jnp.sin(run(x, matrix)).sum())(x)

    along = jnp.ones_like(x)
    _, found = jax.jvp(lambda x: slopes(summed_in_float32, x), (x,), (along,))
    _, plain = jax.jvp(lambda x: slopes(jnp.matmul, x), (x,), (along,))
    np.testing.assert_allclose(rounded(found), rounded(plain), atol=0.1)
