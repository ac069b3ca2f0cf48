"""Families against Transformers on configurations that nobody chose: law 15."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.models.families.parity import assert_packed_rows_match, make_pair

pytestmark = [pytest.mark.parity, pytest.mark.slow]

FULL, SLIDING = "full_attention", "sliding_attention"
CAPS = st.none() | st.sampled_from([1.5, 20.0])


@st.composite
def ropes(draw: st.DrawFn) -> dict[str, Any]:
    """A rotation whose scaling bites within twenty positions."""
    kind = draw(st.sampled_from(["default", "linear", "llama3", "yarn"]))
    record = {"rope_type": kind, "rope_theta": draw(st.sampled_from([50.0, 10_000.0]))}
    if kind != "default":
        record["factor"] = draw(st.sampled_from([1.5, 8.0]))
    if kind in ("llama3", "yarn"):
        record["original_max_position_embeddings"] = draw(st.sampled_from([16, 64]))
    if kind == "llama3":
        record |= {"low_freq_factor": 1.0, "high_freq_factor": draw(st.sampled_from([2.0, 4.0]))}
    if kind == "yarn":
        record |= {
            "beta_fast": draw(st.sampled_from([4.0, 32.0])),
            "truncate": draw(st.booleans()),
        }
    return record


@st.composite
def sizes(draw: st.DrawFn, *, own_heads: bool = True) -> dict[str, Any]:
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 4))
    found = {
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": heads * 2 * draw(st.integers(2, 4)),
        "intermediate_size": draw(st.integers(8, 40)),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5])),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if own_heads:
        found["head_dim"] = 2 * draw(st.integers(3, 9))
    return found


@st.composite
def layer_types(draw: st.DrawFn, count: int) -> dict[str, Any]:
    """Windows of any width in any layers."""
    kinds = st.lists(st.sampled_from([FULL, SLIDING]), min_size=count, max_size=count)
    return {"layer_types": draw(kinds), "sliding_window": draw(st.integers(1, 12))}


@st.composite
def qwens(draw: st.DrawFn, *, bias: bool) -> dict[str, Any]:
    found = draw(sizes(own_heads=bias)) | {"rope_parameters": draw(ropes())}
    if bias:
        found["attention_bias"] = draw(st.booleans())
    if draw(st.booleans()):
        found |= draw(layer_types(found["num_hidden_layers"])) | {"use_sliding_window": True}
    return found


@st.composite
def llamas(draw: st.DrawFn) -> dict[str, Any]:
    return draw(sizes()) | {
        "rope_parameters": draw(ropes()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "hidden_act": draw(st.sampled_from(["silu", "gelu", "gelu_pytorch_tanh"])),
    }


@st.composite
def mistrals(draw: st.DrawFn) -> dict[str, Any]:
    window = st.none() | st.integers(1, 12)
    return draw(sizes()) | {"rope_parameters": draw(ropes()), "sliding_window": draw(window)}


@st.composite
def gemmas(draw: st.DrawFn, *, two_ropes: bool) -> dict[str, Any]:
    found = draw(sizes())
    rope: dict[str, Any] = draw(ropes())
    if two_ropes:
        local = {"rope_type": "default", "rope_theta": draw(st.sampled_from([20.0, 700.0]))}
        rope = {FULL: rope, SLIDING: local}
    return found | {
        **draw(layer_types(found["num_hidden_layers"])),
        "rope_parameters": rope,
        "query_pre_attn_scalar": draw(st.integers(4, 40)),
        "attn_logit_softcapping": draw(CAPS),
        "final_logit_softcapping": draw(CAPS),
        "attention_bias": draw(st.booleans()),
    }


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    """Widths are multiples of 4, as PyTorch's grouped product wants."""
    experts, found = draw(st.integers(2, 6)), draw(sizes())
    return found | {
        "hidden_size": 2 * found["hidden_size"],
        "rope_parameters": draw(ropes()),
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": 4 * draw(st.integers(1, 5)),
        "norm_topk_prob": draw(st.booleans()),
    }


DRAWN = {
    "qwen2": qwens(bias=False),
    "qwen3": qwens(bias=True),
    "qwen3_moe": mixtures(),
    "llama": llamas(),
    "mistral": mistrals(),
    "gemma2": gemmas(two_ropes=False),
    "gemma3_text": gemmas(two_ropes=True),
}


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=5)
@given(data=st.data(), seed=st.integers(0, 99))
def test_any_configuration_of_a_family_has_its_logits(
    kind: str, data: st.DataObject, seed: int
) -> None:
    chosen = data.draw(DRAWN[kind])
    with tempfile.TemporaryDirectory() as folder:
        assert_packed_rows_match(make_pair(kind, chosen, Path(folder), seed=seed), seed)
