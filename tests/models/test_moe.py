"""A mixture of experts: both forms against an oracle, bits beside neighbours, and replay."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.moe import mixture
from headrace.pipeline.models.parameters import Weight, declare, unstack
from headrace.pipeline.models.products import FEATURES_FIRST, FEATURES_LAST
from headrace.pipeline.models.quantize import quantize
from headrace.pipeline.models.traits import ExpertTraits, Traits
from headrace.pipeline.types import NOT_RECORDED
from tests.learner.toy import quick_jit

EXPERTS = ExpertTraits(count=5, per_token=2, normalize=True)
CONFIG = ModelConfig(2, 8, 2, 1, 4, 6, traits=Traits(experts=EXPERTS))
R, T, VOCAB = 3, 4, 11


@cache
def make_params() -> Any:
    """Weights of about 1, so that experts differ strongly and the wrong one shows."""
    rng = np.random.default_rng(0)

    def draw(weight: Weight) -> np.ndarray:
        around = 0.0 if weight.stddev is not None else 1.0
        return (around + 0.6 * rng.standard_normal(weight.shape)).astype(np.float32)

    return jax.tree.map(draw, declare(CONFIG, VOCAB))


@cache
def sampler_layer() -> Any:
    return quick_jit(unstack)(make_params())["layers"][0]


def of_layer(params: Any, index: int = 0) -> Any:
    return {name: stack[index] for name, stack in params["layers"].items()}


@partial(quick_jit, static_argnums=2)
def learner_mixture(x: Any, weights: Any, traits: ExpertTraits, recorded: Any = None) -> Any:
    return mixture(x, weights, traits, activation="silu", form=FEATURES_LAST, recorded=recorded)


@partial(jax.jit, static_argnums=2)
def sampler_mixture(x: Any, weights: Any, traits: ExpertTraits, recorded: Any = None) -> Any:
    added, experts = mixture(
        x.transpose(2, 0, 1),
        weights,
        traits,
        activation="silu",
        form=FEATURES_FIRST,
        recorded=recorded,
    )
    return added.transpose(1, 2, 0), experts


def oracle(x: np.ndarray, weights: Any, traits: ExpertTraits, recorded: Any = None) -> np.ndarray:
    """One token at a time, in float64; tokens go where they were sent, or to the best."""
    weights = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}
    added = np.zeros(x.shape)
    for at in np.ndindex(x.shape[:-1]):
        scores = x[at] @ weights["router"]
        shares = np.exp(scores) / np.exp(scores).sum()
        best = np.argsort(-shares)[: traits.per_token]
        chosen = best if recorded is None or recorded[at][0] == NOT_RECORDED else recorded[at]
        total = shares[chosen].sum() if traits.normalize else 1.0
        for expert in chosen:
            gate, up = (x[at] @ weights[f"expert_{name}"][expert] for name in ("gate", "up"))
            hidden = gate / (1 + np.exp(-gate)) * up
            added[at] += shares[expert] / total * (hidden @ weights["expert_down"][expert])
    return added


def stream(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((R, T, CONFIG.width)).astype(np.float32)


def some_experts(seed: int, *shape: int) -> np.ndarray:
    """Random choices of different experts, [*shape, k]."""
    rng = np.random.default_rng(seed)
    noise = rng.random((*shape, EXPERTS.count))
    return np.argsort(noise, axis=-1)[..., : EXPERTS.per_token].astype(np.int32)


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.booleans(), st.booleans())
def test_both_forms_are_the_weighted_sum_of_the_chosen_experts(
    seed: int, normalize: bool, replayed: bool
) -> None:
    params, traits = make_params(), replace(EXPERTS, normalize=normalize)
    x = stream(seed)
    recorded = None
    if replayed:
        recorded = some_experts(seed, R, T)
        recorded[0, 1] = NOT_RECORDED
    expected = oracle(x, of_layer(params), traits, recorded)
    added, experts = learner_mixture(x, of_layer(params), traits, recorded)
    np.testing.assert_allclose(added, expected, atol=1e-5)
    added, chosen = sampler_mixture(x, sampler_layer(), traits, recorded)
    np.testing.assert_allclose(added, expected, atol=1e-5)
    np.testing.assert_array_equal(chosen, experts)
    if recorded is not None:
        sent = recorded[..., :1] != NOT_RECORDED
        np.testing.assert_array_equal(np.where(sent, experts, 0), np.where(sent, recorded, 0))


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.permutations(range(R)))
def test_law_7_neighbours_never_change_a_row_of_the_sampler(seed: int, order: list[int]) -> None:
    weights = sampler_layer()
    x, other = stream(seed), stream(seed + 1)
    expected, experts = sampler_mixture(x, weights, EXPERTS)
    other[order[0]] = x[0]
    other[order[1]] = 1e3 * x[1]  # goes where row 1 goes, and is large
    got, chosen = sampler_mixture(other, weights, EXPERTS)
    np.testing.assert_array_equal(got[order[0]], expected[0])
    np.testing.assert_array_equal(chosen[order[0]], experts[0])


def test_rounded_experts_move_the_result_a_little() -> None:
    x = stream(1)
    exact, experts = sampler_mixture(x, sampler_layer(), EXPERTS)
    rounded = quick_jit(quantize)(quick_jit(unstack)(make_params()))["layers"][0]
    assert rounded["expert_down"].values.dtype == jnp.int8
    found, same = sampler_mixture(x, rounded, EXPERTS)
    np.testing.assert_array_equal(same, experts)
    assert 1e-4 < np.abs(found - exact).mean() / np.std(exact) < 0.05


ROWS = np.random.default_rng(7).integers(0, VOCAB, (2, 6)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(6, dtype=np.int32), ROWS.shape)
SEGMENTS = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)


def objective(params: Any, experts: Any = None, tokens: Any = ROWS) -> jax.Array:
    hidden, head = forward(params, tokens, POSITIONS, SEGMENTS, config=CONFIG, experts=experts)
    used = (SEGMENTS != 0)[..., None]
    return jnp.where(used, jnp.sin(hidden @ head.T), 0).sum()


gradient = jax.jit(jax.value_and_grad(objective))


def test_a_replayed_choice_decides_the_experts_whatever_the_router_would_choose() -> None:
    params = make_params()
    recorded = some_experts(3, 2, 6, CONFIG.num_layers)
    value, found = gradient(params, recorded)
    moved = jax.tree.map(np.copy, params)
    moved["layers"]["router"] += 5.0  # alike for all experts: another choice changes nothing
    again, _ = gradient(moved, recorded)
    assert np.isfinite(value)
    assert again != pytest.approx(float(gradient(moved)[0]), abs=1e-3)
    # An expert that no token was sent to has no gradient; the router has one.
    for layer in range(CONFIG.num_layers):
        used = np.unique(recorded[:, :, layer][SEGMENTS != 0])
        norms = np.abs(found["layers"]["expert_down"][layer]).sum(axis=(1, 2))
        assert set(np.flatnonzero(norms)) <= set(used)
        assert np.abs(found["layers"]["router"][layer]).sum() > 0


def test_replaying_the_routers_own_choice_changes_no_bit_and_nothing_recorded_is_no_replay() -> (
    None
):
    params = make_params()
    expected = gradient(params)
    nothing = np.full((2, 6, CONFIG.num_layers, EXPERTS.per_token), NOT_RECORDED, np.int32)
    got = gradient(params, nothing)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.slow
def test_law_11_padding_changes_no_gradient() -> None:
    params = make_params()
    other = np.where(SEGMENTS == 0, 5, ROWS)
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-6),
        gradient(params),
        gradient(params, None, other),
    )


@pytest.mark.parametrize("experts", [{"count": 3, "per_token": 4}, {"count": 3}, {"per_token": 1}])
def test_impossible_mixtures_are_config_errors(experts: dict) -> None:
    with pytest.raises(ConfigError, match="experts"):
        ExpertTraits(**experts)
