"""Llama 3.x and what shares its architecture, SmolLM2 among them: the plain decoder."""

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

ARCHITECTURES = ("LlamaForCausalLM",)


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    theta, rope = read_rope(hub)
    bias = or_default(hub, "attention_bias", False)
    traits = Traits(
        attention=AttentionTraits(qkv_bias=bias, output_bias=bias),
        rope=rope,
        ffn_bias=or_default(hub, "mlp_bias", False),
        activation=read_activation(hub),
    )
    return ModelConfig(**read_sizes(hub, tied=False), rope_theta=theta, traits=traits)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    return {
        **write_sizes(config, "llama", ARCHITECTURES[0]),
        **write_rope(config),
        "hidden_act": activation_name(config),
        "attention_bias": config.traits.attention.qkv_bias,
        "mlp_bias": config.traits.ffn_bias,
    }


LLAMA = Family(config_from, config_to, usual_entries, ARCHITECTURES)
