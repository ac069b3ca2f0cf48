"""Adapters: fresh ones change nothing, and merged they are what they were apart."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace import ConfigError
from headrace.pipeline.models.adapted import forward_adapted
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.frozen import INPUT_AXES, freeze
from headrace.pipeline.models.lora import (
    LoraConfig,
    adapt,
    init_lora,
    merge,
    sampler_adapters,
    targets,
    unmerge,
)
from headrace.pipeline.models.matrices import multiply
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.models.products import FEATURES_FIRST, FEATURES_LAST
from tests.learner.toy import quick_jit

MODEL = ModelConfig(
    num_layers=2, width=12, num_heads=4, num_kv_heads=2, head_width=6, ffn_width=20
)
VOCAB = 11
LORA = LoraConfig(rank=3, alpha=6.0)
KINDS = ("float32", "int8", "nf4")
# One compiled program takes less time than its operations one by one.
compiled_freeze = quick_jit(freeze, static_argnums=1)
compiled_merge = quick_jit(merge, static_argnums=2)
compiled_init = quick_jit(init_lora, static_argnums=2)


@pytest.fixture(scope="module")
def params():
    return quick_jit(partial(init, MODEL, VOCAB))(jax.random.key(0))


@pytest.fixture(scope="module")
def adapters(params):
    return trained(compiled_init(jax.random.key(1), params, LORA))


def trained(adapters):
    """Adapters whose b isn't 0 any more."""

    def moved(leaf):
        return np.asarray(leaf) + 0.1 * np.cos(
            np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape)
        )

    return jax.tree.map(moved, adapters)


@pytest.fixture(scope="module")
def run():
    rows = jax.random.randint(jax.random.key(2), (2, 7), 0, VOCAB)
    positions = jnp.tile(jnp.arange(7)[None], (2, 1))
    compiled = quick_jit(partial(forward, config=MODEL))
    return lambda params: compiled(params, rows, positions, jnp.ones_like(rows))[0]


def bits(tree):
    return [(leaf.dtype, np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("stored", KINDS)
def test_unmerge_gives_back_the_bits_of_the_base(params, adapters, stored):
    base = compiled_freeze(params, stored)
    before = bits(base)
    merged = compiled_merge(base, adapters, LORA)
    assert bits(unmerge(merged)) == before
    assert jax.tree.structure(unmerge(merged)) == jax.tree.structure(base)
    assert jax.tree.structure(merged.params) == jax.tree.structure(params)
    assert {leaf.dtype for leaf in jax.tree.leaves(merged.params)} == {jnp.dtype("float32")}
    assert bits(merged.params) != before


def test_merging_fresh_adapters_gives_the_bits_of_the_base(params):
    signed_zeros = jax.tree.map(with_negative_zeros, params)
    fresh = compiled_init(jax.random.key(1), params, LORA)
    assert bits(compiled_merge(signed_zeros, fresh, LORA).params) == bits(signed_zeros)


def with_negative_zeros(leaf):
    return np.where(np.asarray(leaf) < 0, np.float32(-0.0), leaf)


@pytest.mark.parametrize(("rank", "rslora"), [(1, False), (3, True)])
def test_what_is_merged_is_base_plus_scaled_product(rank, rslora):
    config = LoraConfig(rank=rank, alpha=3.0, rslora=rslora, targets="output|gate")
    base = {"layers": {"output": np.ones((2, 3, 2, 5)), "gate": np.zeros((2, 5, 4))}}
    base = jax.tree.map(np.float32, base)
    pairs = trained(compiled_init(jax.random.key(5), base, config))
    merged = compiled_merge(base, pairs, config).params["layers"]
    scale = 3.0 / (np.sqrt(rank) if rslora else rank)
    for name, inputs in (("output", 2), ("gate", 1)):
        a, b = (np.asarray(pairs["layers"][name][half], np.float64) for half in "ab")
        for layer in range(2):
            change = scale * np.tensordot(a[layer], b[layer], axes=1)
            assert change.ndim == inputs + b[layer].ndim - 1
            expected = np.asarray(base["layers"][name][layer]) + change
            np.testing.assert_allclose(merged[name][layer], expected, rtol=1e-5, atol=1e-6)


def test_apart_or_merged_the_model_computes_the_same(params, adapters, run):
    apart = run(adapt(params, adapters, LORA))
    np.testing.assert_allclose(
        apart, run(compiled_merge(params, adapters, LORA).params), atol=2e-5
    )
    assert jnp.abs(apart - run(params)).max() > 0.1


def test_fresh_adapters_beside_the_base_compute_what_the_base_does(params, run):
    fresh = compiled_init(jax.random.key(1), params, LORA)
    np.testing.assert_array_equal(run(adapt(params, fresh, LORA)), run(params))


def test_a_bound_model_takes_adapters_and_base(params, adapters):
    rows = jnp.zeros((1, 3), jnp.int32)
    taken = []

    def forward(whole, *rows):
        taken.append((whole, rows))
        return rows[0], None

    forward_adapted((adapters, params), rows, rows, forward=forward, config=LORA)
    ((whole, given_rows),) = taken
    assert given_rows == (rows, rows)
    assert whole["layers"]["down"].base is params["layers"]["down"]
    assert whole["layers"]["down"].b is adapters["layers"]["down"]["b"]


def test_a_backward_pass_keeps_the_product_of_the_base_and_not_the_adapters(params, adapters):
    rows = jnp.ones((3, 5), jnp.int32)

    def hidden(adapters):
        whole = adapt(params, adapters, LORA)
        return forward(whole, rows, rows, rows, config=MODEL, remat="matrices")[0]

    pull = jax.eval_shape(lambda adapters: jax.vjp(hidden, adapters)[1], adapters)
    kept = [leaf.shape for leaf in jax.tree.leaves(pull)]
    assert kept.count((MODEL.num_layers, 3 * 5, MODEL.ffn_width)) == 2  # gate and up


@pytest.mark.parametrize("name", ["key", "output", "down"])
def test_adapters_of_the_sampler_multiply_as_those_of_the_learner(params, adapters, name):
    forms = [
        {"output": form.from_heads, "down": form.ffn}.get(name, form.to_heads)
        for form in (FEATURES_LAST, FEATURES_FIRST)
    ]
    inputs = params["layers"][name].shape[1 : 1 + INPUT_AXES[name]]
    x = np.random.default_rng(3).normal(size=(2, 3, *inputs)).astype(np.float32)

    @quick_jit
    def both(x):
        learners = adapt(params, adapters, LORA)["layers"][name]
        learners = jax.tree.map(lambda leaf: leaf[1], learners)
        served = adapt(unstack(params), sampler_adapters(adapters), LORA)["layers"][1][name]
        stream = x if name == "output" else jnp.moveaxis(x, -1, 0)
        return multiply(forms[0], x, learners), multiply(forms[1], stream, served)

    expected, found = both(x)
    found = found.transpose(2, 3, 0, 1) if name == "key" else jnp.moveaxis(found, 0, -1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_published_adapters_are_small_and_of_the_samplers_type(params, adapters):
    published = quick_jit(partial(sampler_adapters, weights="bfloat16"))(adapters)
    assert {leaf.dtype for leaf in jax.tree.leaves(published)} == {jnp.dtype("bfloat16")}
    count = sum(leaf.size for leaf in jax.tree.leaves(published))
    assert count == sum(leaf.size for leaf in jax.tree.leaves(adapters))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("query|value", ["query", "value"]),
        ("layers.*", ["query", "key", "value", "output", "gate", "up", "down"]),
        ("layers\\.(gate|up)", ["gate", "up"]),
        ("down", ["down"]),
    ],
)
def test_a_pattern_matches_whole_names(params, pattern, expected):
    found = targets(params["layers"], LoraConfig(rank=1, targets=pattern))
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("pattern", ["q", "embedding", "attention_norm", "layers"])
def test_a_pattern_that_matches_no_matrix_is_refused_with_their_names(params, pattern):
    with pytest.raises(ConfigError, match=r"lora\.targets.*'query'"):
        init_lora(jax.random.key(0), params, LoraConfig(rank=1, targets=pattern))


@pytest.mark.parametrize(
    "setting",
    [{"rank": -1}, {"alpha": 0.0}, {"targets": "("}, {"base": "nf4"}, {"publish": "adapters"}],
)
def test_impossible_settings_are_refused(setting):
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"lora\.{name}"):
        LoraConfig(**setting)


def test_law_18_adapters_of_different_keys_and_matrices_differ(params):
    wide = {"layers": {name: np.zeros((2, 64, 64)) for name in ("gate", "up", "down")}}
    drawn = [compiled_init(jax.random.key(seed), wide, LORA)["layers"] for seed in (0, 1)]
    halves = [pair["a"] for layers in drawn for pair in layers.values()]
    assert len({half.tobytes() for half in map(np.asarray, halves)}) == len(halves)
    for half in halves:
        np.testing.assert_allclose(np.asarray(half).std(), 1 / 8, rtol=0.2)
