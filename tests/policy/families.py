"""Random models of every family, as their config.json says it."""

from typing import Any

from hypothesis import strategies as st

VOCAB = 24
FULL, SLIDING = "full_attention", "sliding_attention"


@st.composite
def hub_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the content of a config.json: small sizes, all of them different."""
    kind = draw(st.sampled_from(list(MORE)))
    kv_heads = draw(st.sampled_from([1, 2]))
    layers = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.sampled_from([1, 2, 3]))
    sizes = {
        "model_type": kind,
        "vocab_size": VOCAB,
        "num_hidden_layers": layers,
        "hidden_size": heads * draw(st.sampled_from([2, 4])),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([2, 4, 6])),
        "intermediate_size": draw(st.integers(1, 9)),
        "rms_norm_eps": draw(st.sampled_from([1e-5, 1e-6])),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_theta": draw(st.sampled_from([1e4, 5e5])),
    }
    return sizes | draw(MORE[kind])


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


_GEMMA = {"query_pre_attn_scalar": 7, "sliding_window": 5, "tie_word_embeddings": True}
MORE: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "llama": st.fixed_dictionaries(
        {
            "attention_bias": st.booleans(),
            "mlp_bias": st.booleans(),
            "rope_scaling": st.none() | st.builds(_llama3, st.sampled_from([8.0, 32.0])),
        }
    ),
    "mistral": st.fixed_dictionaries({"sliding_window": st.none() | st.integers(1, 9)}),
    "qwen2": st.fixed_dictionaries({"use_sliding_window": st.booleans()}).map(
        lambda drawn: {"sliding_window": 4, "max_window_layers": 1} | drawn
    ),
    "qwen3": st.fixed_dictionaries({"attention_bias": st.booleans()}),
    "qwen3_moe": st.fixed_dictionaries(
        {"num_experts": st.integers(2, 4), "norm_topk_prob": st.booleans()}
    ).map(lambda drawn: {"num_experts_per_tok": 2, "moe_intermediate_size": 3} | drawn),
    "gemma2": st.fixed_dictionaries({"final_logit_softcapping": st.none() | st.just(30.0)}).map(
        lambda drawn: _GEMMA | {"attn_logit_softcapping": 50.0} | drawn
    ),
    "gemma3_text": st.just(_GEMMA | {"rope_local_base_freq": 1e3}),
}
