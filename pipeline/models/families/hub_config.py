"""Between config.json and `ModelConfig`: what most families share.

What a key means and what its absence means is as in Transformers, also where newer versions
write another key than older ones; both are read. Values that would change the numbers and are
not supported are refused.
"""

from collections.abc import Callable
from typing import Any

from ...errors import check
from ..config import ModelConfig
from ..traits import Activation
from ..weights.layouts import Entry
from ..weights.names import (
    attention_entries,
    bias_entries,
    expert_entries,
    ffn_bias_entries,
    ffn_entries,
    norm_entries,
    outer_entries,
    qk_norm_entries,
    sandwich_norm_entries,
)
from .family import HubConfig

FULL, SLIDING = "full_attention", "sliding_attention"
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
}
_NAMES: dict[Activation, str] = {
    "silu": "silu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "gelu": "gelu",
}


def demand(allowed: bool, key: str, value: object, condition: str) -> None:
    """Refuse a value of config.json.

    Raises:
      ConfigError: where it isn't allowed.
    """
    hint = "this checkpoint isn't supported; docs/models.md lists what is"
    check(allowed, f"config.json: {key}", value, condition, hint=hint)


def required(hub: HubConfig, key: str) -> Any:
    """Give a value that has no default.

    Raises:
      ConfigError: where it is missing or null.
    """
    demand(hub.get(key) is not None, key, hub.get(key), "given")
    return hub[key]


def or_default(hub: HubConfig, key: str, default: Any) -> Any:
    """Give a value; the default also for null."""
    value = hub.get(key)
    return default if value is None else value


def read_integer(hub: HubConfig, key: str, default: int | None = None) -> int:
    """Give a number that counts something.

    Raises:
      ConfigError: where it is none, or is missing and has no default.
    """
    value = required(hub, key) if default is None else or_default(hub, key, default)
    demand(type(value) is int and value >= 1, key, value, "an integer >= 1")
    assert isinstance(value, int)
    return value


def read_sizes(hub: HubConfig, *, tied: bool) -> dict[str, Any]:
    """Give the fields of `ModelConfig` that all families have, but for the rotation.

    Args:
      tied: whether embeddings are tied where the file doesn't say it.
    """
    width, heads = read_integer(hub, "hidden_size"), read_integer(hub, "num_attention_heads")
    return {
        "num_layers": read_integer(hub, "num_hidden_layers"),
        "width": width,
        "num_heads": heads,
        "num_kv_heads": read_integer(hub, "num_key_value_heads", heads),
        "head_width": read_integer(hub, "head_dim", width // heads),
        "ffn_width": read_integer(hub, "intermediate_size"),
        "norm_eps": float(or_default(hub, "rms_norm_eps", 1e-6)),
        "tied_embeddings": or_default(hub, "tie_word_embeddings", tied),
    }


def write_sizes(config: ModelConfig, model_type: str, architecture: str) -> dict[str, Any]:
    """Undo `read_sizes`; also says what kind of model it is."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
    }


def read_activation(hub: HubConfig, key: str = "hidden_act", default: str = "silu") -> Activation:
    """Read the feed-forward layer's activation."""
    name = or_default(hub, key, default)
    demand(name in _ACTIVATIONS, key, name, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def activation_name(config: ModelConfig) -> str:
    """Give the name of the activation in config.json."""
    return _NAMES[config.traits.activation]


def read_windows(
    hub: HubConfig, window: int | None, is_windowed: Callable[[int], bool]
) -> dict[str, Any]:
    """Give the fields of `AttentionTraits` about windows.

    Args:
      window: how many positions a windowed layer sees; None for no windows.
      is_windowed: tells it of a layer, where the file has no "layer_types".
    """
    count = read_integer(hub, "num_hidden_layers")
    fits = window is None or (type(window) is int and window >= 1)
    demand(fits, "sliding_window", window, "an integer >= 1, or null")
    default = [
        SLIDING if window is not None and is_windowed(layer) else FULL for layer in range(count)
    ]
    types = or_default(hub, "layer_types", default)
    known = len(types) == count and set(types) <= {FULL, SLIDING}
    demand(known, "layer_types", types, f"{count} of {FULL!r} and {SLIDING!r}")
    windowed = tuple(layer for layer, kind in enumerate(types) if kind == SLIDING)
    demand(window is not None or not windowed, "sliding_window", window, "given for these layers")
    return {"window": window if windowed else None, "windowed_layers": windowed}


def read_one_window(hub: HubConfig, window: int | None) -> dict[str, Any]:
    """Give what `read_windows` does, for a family in which all layers are alike."""
    types = or_default(hub, "layer_types", [])
    # Transformers ignores the types here, so a file that means them is another family's.
    demand(window is None or FULL not in types, "layer_types", types, "alike for all layers")
    return read_windows({**hub, "layer_types": None}, window, _always)


def _always(layer: int) -> bool:
    return True


def layer_types(config: ModelConfig) -> list[str]:
    """Give "layer_types", which says of each layer whether it has a window."""
    windowed = config.traits.attention.windowed_layers
    return [SLIDING if layer in windowed else FULL for layer in range(config.num_layers)]


def usual_entries(config: ModelConfig) -> tuple[Entry, ...]:
    """Name all weights of a model as Llama-like checkpoints do."""
    traits = config.traits
    biased = (
        *(("query", "key", "value") if traits.attention.qkv_bias else ()),
        *(("output",) if traits.attention.output_bias else ()),
    )
    return (
        *outer_entries(tied=config.tied_embeddings),
        *(sandwich_norm_entries() if traits.post_norms else norm_entries()),
        *attention_entries(),
        *bias_entries(*biased),
        *(qk_norm_entries() if config.qk_norm else ()),
        *(expert_entries() if traits.experts.count else ffn_entries()),
        *(ffn_bias_entries() if traits.ffn_bias else ()),
    )
