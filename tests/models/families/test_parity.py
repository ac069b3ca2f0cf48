"""Each family against Transformers, on tiny random checkpoints: law 15.

A new family is one line of `CASES`.
"""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import unstack
from headrace.pipeline.sampler.config import DrawLimits, SamplerConfig
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.sampling import Sampling
from headrace.pipeline.types import SampleRequest
from tests.models.families.parity import (
    TOLERANCE,
    VOCAB,
    Pair,
    assert_packed_rows_match,
    make_pair,
    random_sequences,
    reference_logits,
)

pytestmark = pytest.mark.parity

SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
}
OWN_HEADS = SIZES | {"head_dim": 20}
GEMMA = OWN_HEADS | {"query_pre_attn_scalar": 30, "sliding_window": 5}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 500.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", SIZES),
    "qwen2, tied, windows above": (
        "qwen2",
        SIZES
        | {
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("qwen3", OWN_HEADS | {"attention_bias": True}),
    "qwen3-moe": (
        "qwen3_moe",
        OWN_HEADS
        | {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
    "llama 3": ("llama", OWN_HEADS | {"rope_parameters": LLAMA3}),
    "llama, biases": ("llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "smollm2": ("llama", SIZES | {"num_attention_heads": 3, "num_key_value_heads": 1,
                                  "tie_word_embeddings": True, "rms_norm_eps": 1e-5}),
    "mistral": ("mistral", OWN_HEADS | {"sliding_window": 5}),
    "mistral, no window": ("mistral", OWN_HEADS | {"sliding_window": None}),
    "gemma2": ("gemma2", GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": (
        "gemma3_text",
        GEMMA
        | {
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": LINEAR,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
}  # fmt: skip
NAMES = pytest.mark.parametrize("name", CASES)
SAMPLER = SamplerConfig(
    rows=5,
    context_tokens=32,
    decode_tokens=3,
    prefill_lanes=2,
    prefill_tokens=4,
    page_tokens=4,
    draws=DrawLimits(max_top_logprobs=VOCAB),
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@cache
def pair_of(name: str, folder: Path) -> Pair:
    return make_pair(*CASES[name], folder / name)


@NAMES
def test_packed_rows_have_the_logits_of_each_sequence_alone(name: str, folder: Path) -> None:
    assert_packed_rows_match(pair_of(name, folder))


@NAMES
def test_prefill_and_decode_have_the_logits_of_the_whole_text(name: str, folder: Path) -> None:
    pair = pair_of(name, folder)
    engine = Engine(SAMPLER, decoder_model(pair.config, VOCAB))
    engine.publish(jax.jit(unstack)(pair.params), 0)
    prompts = random_sequences(2, 1, 3, 5, 9, 14, 22)
    for ticket, prompt in enumerate(prompts):
        engine.submit(ticket, request_of(prompt, seed=ticket))
    answers: dict[int, Any] = {}
    while engine.has_work:
        answers |= dict(engine.step())
    for ticket, prompt in enumerate(prompts):
        check_completion(pair, prompt, answers[ticket], greedy=ticket % 2 == 0)


def request_of(prompt: list[int], seed: int) -> SampleRequest:
    return SampleRequest(
        np.array(prompt, np.int32),
        max_tokens=8,
        stop_ids=(),
        key=(seed, 0),
        temperature=0.0 if seed % 2 == 0 else 1.0,
        sampling=Sampling(top_logprobs=VOCAB),
    )


def check_completion(pair: Pair, prompt: list[int], found: Any, *, greedy: bool) -> None:
    """Compare the logprobs of all tokens at each sampled position."""
    expected = reference_logits(pair, [*prompt, *found.tokens.tolist()])[len(prompt) - 1 : -1]
    expected = expected - np.logaddexp.reduce(expected, axis=-1, keepdims=True)
    ours = np.empty_like(expected)
    np.put_along_axis(ours, found.top_logprobs.ids, found.top_logprobs.logprobs, axis=-1)
    np.testing.assert_allclose(ours, expected, atol=TOLERANCE)
    if greedy:
        np.testing.assert_array_equal(found.tokens, expected.argmax(axis=-1))
