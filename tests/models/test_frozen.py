"""Frozen parameters: how far rounding moves a weight, and products that don't notice it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.frozen import EXPERTS, INPUT_AXES, freeze, plain, thaw
from headrace.pipeline.models.matrices import multiply
from headrace.pipeline.models.nf4 import BLOCK, LEVELS, dequantize_nf4, quantize_nf4
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.models.products import FEATURES_LAST
from headrace.pipeline.models.quantize import quantize
from headrace.pipeline.models.traits import ExpertTraits, Traits
from tests.learner.toy import quick_jit

MODEL = ModelConfig(
    num_layers=2, width=12, num_heads=4, num_kv_heads=2, head_width=6, ffn_width=20
)
MIXTURE = ModelConfig(
    num_layers=2, width=8, num_heads=2, num_kv_heads=2, head_width=4, ffn_width=16,
    traits=Traits(experts=ExpertTraits(count=3, per_token=2)),
)  # fmt: skip
KINDS = ("bfloat16", "int8", "nf4")
# One compiled program takes less time than its operations one by one.
compiled_freeze = quick_jit(freeze, static_argnums=1)
compiled_thaw = quick_jit(thaw)
run_mixture = quick_jit(partial(forward, config=MIXTURE))
compiled_quantize_nf4 = quick_jit(quantize_nf4)
compiled_dequantize_nf4 = quick_jit(partial(dequantize_nf4, dtype=jnp.float32))


@pytest.fixture(scope="module")
def params():
    return quick_jit(partial(init, MODEL, 11))(jax.random.key(0))


def nf4_oracle(matrix):
    """Every weight on its own: the nearest level of its block, in float64."""
    flat = np.asarray(matrix, np.float64).reshape(-1)
    rounded = np.zeros_like(flat)
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        largest = np.abs(block).max()
        levels = np.array(LEVELS) * largest
        rounded[start : start + BLOCK] = levels[np.abs(block[:, None] - levels).argmin(1)]
    return rounded.reshape(matrix.shape)


@given(st.integers(0, 1000), st.sampled_from([(3, 5), (7, 40)]), st.booleans())
def test_nf4_takes_the_nearest_level_of_its_block(seed, shape, zeros):
    matrix = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    if zeros:
        matrix.reshape(-1)[: min(BLOCK, matrix.size - 1)] = 0
    rounded = compiled_quantize_nf4(matrix)
    found = compiled_dequantize_nf4(rounded)
    np.testing.assert_allclose(found, nf4_oracle(matrix), rtol=1e-6)
    again = compiled_quantize_nf4(found)
    np.testing.assert_array_equal(again.codes, rounded.codes)
    np.testing.assert_array_equal(again.largest, rounded.largest)


def test_nf4_takes_four_and_a_half_bits_a_weight():
    rounded = quantize_nf4(jnp.ones((64, 32)))
    assert rounded.codes.nbytes + rounded.largest.nbytes == 64 * 32 * 4.5 / 8


def test_int8_is_rounded_as_the_sampler_rounds_it(params):
    """A base of int8 that is served as int8 is rounded once, not twice."""
    frozen = compiled_freeze(params, "int8")
    served = quick_jit(lambda params: quantize(unstack(params)))(params)
    for name in INPUT_AXES:
        values, scales = map(np.asarray, frozen["layers"][name])
        for layer in range(MODEL.num_layers):
            expected = served["layers"][layer][name]
            np.testing.assert_array_equal(values[layer], expected.values)
            np.testing.assert_array_equal(scales[layer], expected.scales)


@pytest.mark.parametrize("stored", KINDS)
def test_only_matrices_go_below_16_bits(params, stored):
    frozen = compiled_freeze(params, stored)
    assert frozen["embedding"].dtype == jnp.float32  # it is the head too
    assert frozen["final_norm"].dtype == frozen["layers"]["ffn_norm"].dtype == jnp.float32
    bits = {"bfloat16": 16, "int8": 8, "nf4": 4}[stored]
    for name in INPUT_AXES:
        stack = params["layers"][name]
        values = max(leaf.nbytes for leaf in jax.tree.leaves(frozen["layers"][name]))
        padded = 2 * -(-(stack.size // 2) // BLOCK) * BLOCK if stored == "nf4" else stack.size
        assert values == padded * bits // 8


@pytest.mark.parametrize("stored", KINDS)
def test_thawed_parameters_are_plain_and_near(params, stored):
    thawed = compiled_thaw(compiled_freeze(params, stored))
    assert jax.tree.structure(thawed) == jax.tree.structure(params)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(thawed), strict=True):
        assert after.dtype == jnp.float32
        moved = np.abs(np.asarray(after) - np.asarray(before)).max()
        worst = {"bfloat16": 2**-8, "int8": 0.5 / 127, "nf4": 0.152}[stored]
        assert moved <= worst * np.abs(np.asarray(before)).max() * (1 + 1e-6)


def test_an_embedding_that_is_not_the_head_is_bfloat16(params):
    frozen = quick_jit(partial(freeze, stored="int8"))(params | {"head": params["embedding"]})
    assert frozen["embedding"].dtype == jnp.bfloat16
    assert frozen["head"].dtype == jnp.float32


@pytest.mark.parametrize("stored", ["int8", "nf4"])
def test_experts_are_frozen_each_on_its_own_and_multiplied_as_if_plain(stored):
    """One expert's large weights don't coarsen another's; no product notices the storage."""
    params = quick_jit(partial(init, MIXTURE, 11))(jax.random.key(0))
    larger = np.array([1.0, 100.0, 1.0], np.float32)[None, :, None, None]
    layers = params["layers"] | {name: params["layers"][name] * larger for name in EXPERTS}
    frozen = compiled_freeze(params | {"layers": layers}, stored)
    thawed = compiled_thaw(frozen)
    for name in EXPERTS:
        moved = np.abs(np.asarray(thawed["layers"][name] - layers[name])).max((0, 2, 3))
        size = np.abs(np.asarray(layers[name])).max((0, 2, 3))
        assert (moved <= 0.16 * size).all()
    rows = jnp.ones((2, 5), jnp.int32)
    found, expected = (run_mixture(tree, rows, rows, rows)[0] for tree in (frozen, thawed))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_float32_is_kept_as_it_is(params):
    assert freeze(params, "float32") is params


@pytest.mark.parametrize(
    ("stored", "name", "product"),
    [
        ("bfloat16", "down", FEATURES_LAST.ffn),
        ("int8", "output", FEATURES_LAST.from_heads),
        ("nf4", "query", FEATURES_LAST.to_heads),
    ],
)
def test_a_product_and_its_gradient_are_those_of_the_widened_matrix(params, stored, name, product):
    stack = compiled_freeze(params, stored)["layers"][name]
    inputs = params["layers"][name].shape[1 : 1 + INPUT_AXES[name]]
    x = np.random.default_rng(1).normal(size=(2, 3, *inputs)).astype(np.float32)

    @quick_jit
    def both(x, stack):
        matrix = jax.tree.map(lambda leaf: leaf[1], stack)
        wide = jax.lax.optimization_barrier(plain(matrix, jnp.float32))
        return [forward_and_gradient(product, x, of_layer) for of_layer in (matrix, wide)]

    found, expected = both(x, stack)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6), found, expected)


def forward_and_gradient(product, x, matrix):
    result, pull = jax.vjp(partial(multiply, product, matrix=matrix), x)
    return result, pull(jnp.cos(result))[0]
