"""Mistral: the plain decoder, in which all layers have a window, or none has."""

from typing import Any

from ..config import ModelConfig
from ..traits import AttentionTraits, Traits
from .family import Family, HubConfig
from .hub_config import (
    FULL,
    activation_name,
    demand,
    or_default,
    read_activation,
    read_sizes,
    read_windows,
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
    types = or_default(hub, "layer_types", [])
    # Transformers ignores the types here, so a file that means them is another family's.
    demand(window is None or FULL not in types, "layer_types", types, "alike for all layers")
    sizes = read_sizes({"num_key_value_heads": 8, **hub}, tied=False)
    attention = AttentionTraits(**read_windows({**hub, "layer_types": None}, window, _always))
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


def _always(layer: int) -> bool:
    return True


MISTRAL = Family(config_from, config_to, usual_entries, ARCHITECTURES)
