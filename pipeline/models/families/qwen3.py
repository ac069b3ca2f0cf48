"""Qwen3: queries and keys are normalised, heads have a width of their own."""

from typing import Any

from ..config import ModelConfig
from ..traits import AttentionTraits, Traits
from .family import Family, HubConfig
from .hub_config import (
    activation_name,
    or_default,
    read_activation,
    read_sizes,
    usual_entries,
    write_sizes,
)
from .hub_rope import read_rope, write_rope
from .qwen2 import KV_HEADS, upper_windows, write_windows

ARCHITECTURES = ("Qwen3ForCausalLM",)
HEAD_WIDTH = 128


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    theta, rope = read_rope(hub)
    bias = or_default(hub, "attention_bias", False)
    attention = AttentionTraits(qkv_bias=bias, output_bias=bias, **upper_windows(hub))
    traits = Traits(attention=attention, rope=rope, activation=read_activation(hub))
    sizes = read_sizes(
        {"head_dim": HEAD_WIDTH, "num_key_value_heads": KV_HEADS, **hub}, tied=False
    )
    return ModelConfig(**sizes, rope_theta=theta, qk_norm=True, traits=traits)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    return {
        **write_sizes(config, "qwen3", ARCHITECTURES[0]),
        **write_rope(config),
        **write_windows(config),
        "hidden_act": activation_name(config),
        "attention_bias": config.traits.attention.qkv_bias,
    }


QWEN3 = Family(config_from, config_to, usual_entries, ARCHITECTURES)
