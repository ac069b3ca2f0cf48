"""Stored weights: rounding is bounded per output, and products use exactly the rounded weights."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headrace.pipeline.models.attention import attention
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward_cached, logits_of, output_head
from headrace.pipeline.models.packed import head_major
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.models.quantize import (
    OUTPUT_AXES,
    Quantized,
    look_up,
    quantize,
    quantize_matrix,
    sampler_axes,
    sampler_params,
)
from tests.learner.toy import quick_jit

VOCAB = 13
TIED = ModelConfig(2, 16, 4, 2, 4, 24, qk_norm=True)
UNTIED = replace(TIED, tied_embeddings=False)

FLOATS = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)
rounded = jax.jit(quantize_matrix, static_argnums=1)


def dequantized(matrix: Quantized) -> np.ndarray:
    """The weights that the stored ones stand for."""
    values, scales = np.asarray(matrix.values, np.float32), np.asarray(matrix.scales)
    return values * scales.reshape(scales.shape + (1,) * (values.ndim - scales.ndim))


def is_quantized(node: Any) -> bool:
    return isinstance(node, Quantized)


def make_params(model: ModelConfig, seed: int = 0) -> Any:
    return quick_jit(partial(init, model, VOCAB))(jax.random.key(seed))


@settings(max_examples=40)
@given(arrays(np.float32, (3, 2, 4), elements=FLOATS), st.sampled_from([1, 2]))
def test_no_weight_moves_by_more_than_half_of_its_outputs_scale(matrix, outputs):
    found = rounded(matrix, outputs)
    inputs = tuple(range(outputs, 3))
    assert found.values.dtype == jnp.int8
    assert found.scales.dtype == jnp.float32
    assert found.scales.shape == matrix.shape[:outputs]
    assert (found.scales > 0).all()
    assert np.abs(np.asarray(found.values, np.int32)).max() <= 127
    scales = np.abs(matrix).max(axis=inputs) / 127
    kept = scales >= np.finfo(np.float32).tiny  # XLA takes smaller numbers for 0
    np.testing.assert_allclose(np.where(kept, scales, 1), found.scales, rtol=1e-6)
    half = np.asarray(found.scales) / 2
    error = np.abs(dequantized(found) - matrix).max(axis=inputs)
    assert (error <= half * (1 + 1e-4)).all()


@settings(max_examples=40)
@given(arrays(np.int8, (3, 5), elements=st.integers(-127, 127)), st.integers(-8, 8))
def test_weights_on_the_grid_are_exact_and_a_sign_changes_nothing_else(values, exponent):
    values[:, 0] = 127
    matrix = values.astype(np.float32) * np.float32(2.0**exponent)
    np.testing.assert_array_equal(dequantized(rounded(matrix, 1)), matrix)
    np.testing.assert_array_equal(dequantized(rounded(-matrix, 1)), -matrix)


def test_an_output_of_zeros_stays_zero_and_an_outlier_spoils_only_its_own_output():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((4, 32)).astype(np.float32)
    matrix[1] = 0
    before = dequantized(rounded(matrix, 1))
    matrix[2, 5] = 1e6
    after = dequantized(rounded(matrix, 1))
    assert (after[1] == 0).all()
    np.testing.assert_array_equal(after[[0, 1, 3]], before[[0, 1, 3]])
    np.testing.assert_allclose(after[2, 5], 1e6, rtol=1e-6)
    assert (np.delete(after[2], 5) == 0).all()


def test_one_matrix_or_many_mapped_over_are_rounded_alike():
    stack = np.random.default_rng(1).standard_normal((3, 4, 6)).astype(np.float32)
    many = jax.jit(jax.vmap(partial(quantize_matrix, outputs=1)))(stack)
    for index, matrix in enumerate(stack):
        one = rounded(matrix, 1)
        np.testing.assert_array_equal(many.values[index], one.values)
        np.testing.assert_array_equal(many.scales[index], one.scales)


def test_every_matrix_is_rounded_and_nothing_else_changes():
    plain = quick_jit(unstack)(make_params(UNTIED))
    stored = quick_jit(quantize)(plain)
    assert jax.tree.structure(plain) == jax.tree.structure(stored, is_leaf=is_quantized)
    flat = jax.tree.leaves_with_path(stored, is_leaf=is_quantized)
    for (path, leaf), weight in zip(flat, jax.tree.leaves(plain), strict=True):
        assert is_quantized(leaf) == (path[-1].key in OUTPUT_AXES) == (weight.ndim > 1)
        assert leaf.shape == weight.shape
        if not is_quantized(leaf):
            np.testing.assert_array_equal(leaf, weight)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_every_stored_array_has_its_logical_axes(weights):
    params = jax.eval_shape(partial(sampler_params, weights=weights), make_params(UNTIED))
    axes = jax.tree.structure(params).flatten_up_to(sampler_axes(UNTIED, weights))
    leaves = jax.tree.leaves_with_path(params)
    for names, (path, leaf) in zip(axes, leaves, strict=True):
        assert len(names) == leaf.ndim, path
    layer = sampler_axes(UNTIED, "int8")["layers"][1]
    assert layer["down"] == Quantized(("width", "ffn"), ("width",))
    assert layer["query"].scales == ("heads", "head_width")


def test_int8_takes_about_a_quarter_of_the_memory_and_bfloat16_half():
    params = make_params(ModelConfig(2, 64, 4, 2, 16, 192))
    sizes = {}
    for weights in ("float32", "bfloat16", "int8"):
        stored = jax.eval_shape(partial(sampler_params, weights=weights), params)
        sizes[weights] = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(stored))
    assert sizes["bfloat16"] / sizes["float32"] == 0.5
    assert 0.25 < sizes["int8"] / sizes["float32"] < 0.28


def test_stored_weights_survive_the_donation_of_the_learners():
    params = make_params(TIED)
    stored = quick_jit(partial(sampler_params, weights="int8"))(params)
    expected = jax.tree.map(np.array, stored)
    for leaf in jax.tree.leaves(params):
        leaf.delete()
    jax.tree.map(np.testing.assert_array_equal, stored, expected)


TOKENS = np.random.default_rng(3).integers(0, VOCAB, (2, 7)).astype(np.int32)
MASK = np.broadcast_to(np.tri(7, dtype=np.bool_), (2, 7, 7))


@partial(quick_jit, static_argnums=1)
def logits(params: Any, model: ModelConfig) -> jax.Array:
    """Two texts through the sampler's decoder, without a cache: [14, V]."""

    def attend(cache: None, heads: Any, sight: Any) -> Any:
        queries, keys, values = heads
        return attention(queries, head_major(keys), head_major(values), MASK), cache

    positions = jnp.broadcast_to(jnp.arange(7), TOKENS.shape)
    hidden, _ = forward_cached(params, [None], TOKENS, positions, attend=attend, config=model)
    return logits_of(hidden.reshape(14, -1), output_head(params))


def test_products_use_exactly_the_rounded_weights_which_moves_logits_a_little():
    model = replace(UNTIED, num_layers=1)
    plain = quick_jit(unstack)(make_params(model))
    stored = quick_jit(quantize)(plain)

    def meant(leaf: Any) -> Any:
        return dequantized(leaf) if is_quantized(leaf) else leaf

    same = jax.tree.map(meant, stored, is_leaf=is_quantized)
    found, exact = logits(stored, model), logits(plain, model)
    np.testing.assert_allclose(found, logits(same, model), atol=2e-5)
    assert 1e-4 < jnp.abs(found - exact).mean() / jnp.std(exact) < 0.02
    rows = look_up(stored["embedding"], jnp.array([4, 0]))
    np.testing.assert_allclose(rows, same["embedding"][[4, 0]], rtol=1e-6)


def test_bfloat16_moves_logits_a_little():
    model = replace(TIED, num_layers=1)
    params = make_params(model)
    exact = logits(quick_jit(sampler_params)(params), model)
    found = logits(quick_jit(partial(sampler_params, weights="bfloat16"))(params), model)
    assert found.dtype == jnp.float32
    assert 1e-4 < jnp.abs(found - exact).mean() / jnp.std(exact) < 0.02
