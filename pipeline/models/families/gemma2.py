"""Gemma 2: every other layer has a window, scores and logits are capped, norms come in pairs."""

from collections.abc import Callable
from typing import Any

from ..config import ModelConfig
from ..traits import AttentionTraits, RopeTraits, Traits
from .family import Family, HubConfig
from .hub_config import (
    activation_name,
    demand,
    layer_types,
    or_default,
    read_activation,
    read_sizes,
    read_windows,
    usual_entries,
    write_sizes,
)
from .hub_rope import read_rope, write_rope

ARCHITECTURES = ("Gemma2ForCausalLM",)
DEFAULTS = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    hub = {**DEFAULTS, **hub}
    theta, rope = read_rope(hub)
    traits = gemma_traits(hub, rope, lambda layer: layer % 2 == 0)
    return ModelConfig(**read_sizes(hub, tied=True), rope_theta=theta, traits=traits)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    sizes = write_sizes(config, "gemma2", ARCHITECTURES[0])
    return sizes | write_rope(config) | write_gemma(config)


def gemma_traits(hub: HubConfig, rope: RopeTraits, is_windowed: Callable[[int], bool]) -> Traits:
    """Read what Gemma 2 and 3 share.

    Args:
      hub: with all keys of `DEFAULTS`.
      is_windowed: tells it of a layer, where the file has no "layer_types".
    """
    both_ways = or_default(hub, "use_bidirectional_attention", False)
    demand(not both_ways, "use_bidirectional_attention", both_ways, "false")
    bias = or_default(hub, "attention_bias", False)
    attention = AttentionTraits(
        qkv_bias=bias,
        output_bias=bias,
        score_width=float(hub["query_pre_attn_scalar"]),
        score_cap=hub["attn_logit_softcapping"],
        **read_windows(hub, hub["sliding_window"], is_windowed),
    )
    return Traits(
        attention=attention,
        rope=rope,
        activation=read_activation(hub, "hidden_activation", "gelu_pytorch_tanh"),
        norms_add_one=True,
        post_norms=True,
        embedding_scale=float(hub["hidden_size"]) ** 0.5,
        logit_cap=hub["final_logit_softcapping"],
    )


def write_gemma(config: ModelConfig) -> dict[str, Any]:
    """Undo `gemma_traits`."""
    traits = config.traits
    scalar = traits.attention.score_width or config.head_width
    return {
        "attention_bias": traits.attention.qkv_bias,
        # Newer versions of Transformers take no 256.0 for it.
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        "attn_logit_softcapping": traits.attention.score_cap,
        "final_logit_softcapping": traits.logit_cap,
        "hidden_activation": activation_name(config),
        "sliding_window": traits.attention.window or DEFAULTS["sliding_window"],
        "layer_types": layer_types(config),
    }


GEMMA2 = Family(config_from, config_to, usual_entries, ARCHITECTURES)
