"""Qwen2 and Qwen2.5: biases on queries, keys and values; windows in the upper layers, if any."""

from typing import Any

from ..config import ModelConfig
from ..traits import AttentionTraits, Traits
from .family import Family, HubConfig
from .hub_config import (
    activation_name,
    layer_types,
    or_default,
    read_activation,
    read_sizes,
    read_windows,
    usual_entries,
    write_sizes,
)
from .hub_rope import read_rope, write_rope

ARCHITECTURES = ("Qwen2ForCausalLM",)
KV_HEADS = 32  # where the file doesn't say it; null stands for as many as heads


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    theta, rope = read_rope(hub)
    attention = AttentionTraits(qkv_bias=True, **upper_windows(hub))
    traits = Traits(attention=attention, rope=rope, activation=read_activation(hub))
    sizes = read_sizes({"num_key_value_heads": KV_HEADS, **hub}, tied=False)
    return ModelConfig(**sizes, rope_theta=theta, traits=traits)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    return {
        **write_sizes(config, "qwen2", ARCHITECTURES[0]),
        **write_rope(config),
        **write_windows(config),
        "hidden_act": activation_name(config),
    }


def upper_windows(hub: HubConfig) -> dict[str, Any]:
    """Read Qwen's windows: those layers have one that aren't among the first n."""
    window = None
    if or_default(hub, "use_sliding_window", False):
        window = hub.get("sliding_window", 4096)  # null is none
    first = or_default(hub, "max_window_layers", 28)
    return read_windows(hub, window, lambda layer: layer >= first)


def write_windows(config: ModelConfig) -> dict[str, Any]:
    """Undo `upper_windows`."""
    window = config.traits.attention.window
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": config.num_layers,
        "layer_types": layer_types(config),
    }


QWEN2 = Family(config_from, config_to, usual_entries, ARCHITECTURES)
