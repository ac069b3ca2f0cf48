"""The decoder against a slow oracle, and the laws of packing."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward, output_head
from headrace.pipeline.models.head import logits
from headrace.pipeline.models.parameters import init
from headrace.pipeline.models.remat import Remat
from headrace.pipeline.models.traits import AttentionTraits, RopeTraits, Traits
from tests.learner.toy import quick_jit

VOCAB = 11
# Two models that have every trait between them, with numbers that bite on seven tokens.
BIASED = Traits(
    attention=AttentionTraits(qkv_bias=True, output_bias=True, window=2, windowed_layers=(0, 1)),
    rope=RopeTraits("llama3", 4.0, 1.0, 3.0, original_tokens=16),
    ffn_bias=True,
)
SANDWICH = Traits(
    attention=AttentionTraits(
        score_width=3.0, score_cap=2.0, window=3, windowed_layers=(0, 1, 3, 4)
    ),
    rope=RopeTraits("linear", 2.0, windowed_theta=7.0),
    activation="gelu_tanh",
    norms_add_one=True,
    post_norms=True,
    embedding_scale=2.5,
    logit_cap=1.5,
)
MODELS = {
    "multi-head, tied": ModelConfig(2, 12, 3, 3, 4, 10),
    "grouped, qk-norm, untied": ModelConfig(
        3, 10, 4, 2, 6, 8, qk_norm=True, tied_embeddings=False, rope_theta=50.0
    ),
    "biases, all layers windowed, llama3": ModelConfig(2, 8, 4, 2, 6, 6, traits=BIASED),
    "sandwich norms, caps, two ropes": ModelConfig(
        5, 8, 4, 1, 4, 6, qk_norm=True, traits=SANDWICH
    ),
}


def make_params(config: ModelConfig, seed: int = 0) -> Any:
    """Parameters in which every weight, norms included, differs from its start."""
    params = quick_jit(partial(init, config, VOCAB))(jax.random.key(seed))
    rng = np.random.default_rng(seed)

    def disturb(weight: jax.Array) -> np.ndarray:
        return np.asarray(weight) + 0.3 * rng.standard_normal(weight.shape).astype(np.float32)

    return jax.tree.map(disturb, params)


def oracle_hidden(params: Any, tokens: list[int], config: ModelConfig) -> np.ndarray:
    """One sequence through the decoder in float64, one token and one head at a time."""
    params = jax.tree.map(partial(np.asarray, dtype=np.float64), params)
    scale = config.traits.embedding_scale
    stream = [scale * params["embedding"][token] for token in tokens]
    for index in range(config.num_layers):
        weights = {name: stack[index] for name, stack in params["layers"].items()}
        weights["windowed"] = index in config.traits.attention.windowed_layers
        normed = [oracle_norm(x, weights["attention_norm"], config) for x in stream]
        for at in range(len(stream)):
            added = oracle_attend(normed, at, weights, config) + weights.get("output_bias", 0)
            stream[at] = stream[at] + oracle_post_norm(added, weights, "attention", config)
        normed = [oracle_norm(x, weights["ffn_norm"], config) for x in stream]
        for at, x in enumerate(normed):
            added = oracle_ffn(x, weights, config)
            stream[at] = stream[at] + oracle_post_norm(added, weights, "ffn", config)
    return np.stack([oracle_norm(x, params["final_norm"], config) for x in stream])


def oracle_ffn(x: np.ndarray, weights: Any, config: ModelConfig) -> np.ndarray:
    """What the feed-forward layer adds to one token."""
    gate, up = (x @ weights[name] + weights.get(f"{name}_bias", 0) for name in ("gate", "up"))
    if config.traits.activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = gate * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3))) / 2
    return (gate * up) @ weights["down"] + weights.get("down_bias", 0)


def oracle_post_norm(
    added: np.ndarray, weights: Any, name: str, config: ModelConfig
) -> np.ndarray:
    if not config.traits.post_norms:
        return added
    return oracle_norm(added, weights[f"{name}_post_norm"], config)


def oracle_attend(
    normed: list[np.ndarray], at: int, weights: Any, config: ModelConfig
) -> np.ndarray:
    """What attention adds to the token at one position."""
    total = np.zeros(config.width)
    traits = config.traits.attention
    first = max(0, at + 1 - traits.window) if weights["windowed"] else 0
    for head in range(config.num_heads):
        kv_head = head * config.num_kv_heads // config.num_heads
        query = oracle_head(normed[at], weights, "query", head, at, config)
        scores, values = [], []
        for before in range(first, at + 1):
            key = oracle_head(normed[before], weights, "key", kv_head, before, config)
            score = query @ key / (traits.score_width or config.head_width) ** 0.5
            cap = traits.score_cap
            scores.append(cap * np.tanh(score / cap) if cap else score)
            value = normed[before] @ weights["value"][:, kv_head]
            values.append(value + weights["value_bias"][kv_head] if traits.qkv_bias else value)
        shares = np.exp(scores) / np.sum(np.exp(scores))
        mixed = sum(share * value for share, value in zip(shares, values, strict=True))
        total += mixed @ weights["output"][head]
    return total


def oracle_head(
    x: np.ndarray, weights: Any, name: str, head: int, position: int, config: ModelConfig
) -> np.ndarray:
    """One rotated query or key: dimension i turns with i + h/2."""
    vector = x @ weights[name][:, head]
    if config.traits.attention.qkv_bias:
        vector = vector + weights[f"{name}_bias"][head]
    if config.qk_norm:
        vector = oracle_norm(vector, weights[f"{name}_norm"], config)
    half = config.head_width // 2
    turned = vector.copy()
    for i in range(half):
        angle = position * oracle_frequency(i, config, windowed=weights["windowed"])
        turned[i] = vector[i] * np.cos(angle) - vector[i + half] * np.sin(angle)
        turned[i + half] = vector[i + half] * np.cos(angle) + vector[i] * np.sin(angle)
    return turned


def oracle_frequency(i: int, config: ModelConfig, *, windowed: bool) -> float:
    """How many radians dimension i turns per position."""
    rope = config.traits.rope
    own_theta = rope.windowed_theta if windowed else None
    frequency = (own_theta or config.rope_theta) ** (-2 * i / config.head_width)
    if rope.scaling == "none" or own_theta:
        return frequency
    if rope.scaling == "linear":
        return frequency / rope.factor
    wavelength = 2 * np.pi / frequency
    if wavelength > rope.original_tokens / rope.low_frequency_factor:
        return frequency / rope.factor
    if wavelength < rope.original_tokens / rope.high_frequency_factor:
        return frequency
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    share = (rope.original_tokens / wavelength - low) / (high - low)
    return (1 - share) * frequency / rope.factor + share * frequency


def oracle_norm(x: np.ndarray, weight: np.ndarray, config: ModelConfig) -> np.ndarray:
    weight = 1 + weight if config.traits.norms_add_one else weight
    return x / np.sqrt(np.mean(x**2) + config.norm_eps) * weight


def sequences(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def pack(rows: list[list[list[int]]], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segment ids of rows of sequences."""
    tokens, positions, segments = np.zeros((3, len(rows), length), np.int32)
    for row, members in enumerate(rows):
        end = 0
        for segment, member in enumerate(members, 1):
            start, end = end, end + len(member)
            tokens[row, start:end] = member
            positions[row, start:end] = np.arange(len(member))
            segments[row, start:end] = segment
    return tokens, positions, segments


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("remat", ["none", "matrices"])
def test_forward_equals_the_oracle_for_packed_rows(config: ModelConfig, remat: Remat) -> None:
    params = make_params(config)
    first, second, third = sequences(1, [5, 3, 7])
    run = quick_jit(partial(forward, config=config, remat=remat))
    hidden, head = run(params, *pack([[first, second], [third]], length=9))
    assert hidden.dtype == logits(hidden, head).dtype == jnp.float32
    for got, tokens in [
        (hidden[0, :5], first), (hidden[0, 5:8], second), (hidden[1, :7], third),
    ]:  # fmt: skip
        np.testing.assert_allclose(got, oracle_hidden(params, tokens, config), atol=2e-4)


def test_the_head_is_the_embedding_only_where_they_are_tied() -> None:
    for config in MODELS.values():
        params = make_params(config)
        same = output_head(params) is params["embedding"]
        assert same == config.tied_embeddings


@pytest.mark.parametrize("name", ["grouped, qk-norm, untied", "sandwich norms, caps, two ropes"])
def test_law_11_padding_gives_finite_values_and_leaks_nothing_whatever_its_embedding(
    name: str,
) -> None:
    config = replace(MODELS[name], tied_embeddings=False)
    params = make_params(config)
    [sequence] = sequences(2, [4])
    tokens, positions, segments = pack([[sequence], []], length=6)

    def loss(params: Any, tokens: np.ndarray) -> tuple[jax.Array, jax.Array]:
        hidden, head = forward(params, tokens, positions, segments, config=config)
        used = (segments != 0)[:, :, None]
        return jnp.where(used, jnp.sin(logits(hidden, head)), 0.0).sum(), hidden

    gradient = quick_jit(jax.value_and_grad(loss, has_aux=True))
    (value, hidden), grads = gradient(params, tokens)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((hidden, grads)))
    unused = next(token for token in range(1, VOCAB) if token not in sequence)
    params["embedding"][unused] = np.nan
    other = np.where(segments == 0, unused, tokens)
    # Gradients are sums over tokens; padding adds exact zeros to them.
    (found_value, _), found = gradient(params, other)
    assert found_value == value
    jax.tree.map(np.testing.assert_array_equal, found, grads)
