"""Mistral: the plain decoder, in which all layers have a window, or none has."""

from typing import Any

from ..config import ModelConfig
from ..traits import AttentionTraits, Traits
from .family import Family, HubConfig
from .hub_config import (
    activation_name,
    read_activation,
    read_one_window,
    read_sizes,
    usual_entries,
    write_sizes,
)
from .hub_rope import read_rope, write_rope

ARCHITECTURES = ("MistralForCausalLM",)
WINDOW = 4096  # where the file doesn't name one; null stands for none


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    theta, rope = read_rope(hub)
    window = hub.get("sliding_window", WINDOW)
    sizes = read_sizes({"num_key_value_heads": 8, **hub}, tied=False)
    attention = AttentionTraits(**read_one_window(hub, window))
    traits = Traits(attention=attention, rope=rope, activation=read_activation(hub))
    return ModelConfig(**sizes, rope_theta=theta, traits=traits)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    return {
        **write_sizes(config, "mistral", ARCHITECTURES[0]),
        **write_rope(config),
        "hidden_act": activation_name(config),
        "sliding_window": config.traits.attention.window,
    }


MISTRAL = Family(config_from, config_to, usual_entries, ARCHITECTURES)
