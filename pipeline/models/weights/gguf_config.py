"""A GGUF file's fields as the content of a `config.json`.

What the format leaves out is fixed for an architecture, and is filled in: which layers have a
window, and by what queries are scaled.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...gguf_header import GgufHeader
from .gguf_names import EMBEDDING, HEAD
from .gguf_rope import llama3_scaling

_MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
# Every how many layers one sees the whole context.
_GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6}
# Their 27 billion parameters have heads that are narrower than the scale of their queries.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
_NUMBERS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
_OPTIONAL = {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "sliding_window": "attention.sliding_window",
}
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def gguf_settings(header: GgufHeader, rope_factors: np.ndarray | None = None) -> dict[str, Any]:
    """Return what a `config.json` of the same model says.

    Args:
      rope_factors: the file's table of them, as `GgufTensors` gives it.

    Raises:
      ConfigError: for an architecture that isn't known, or a field that is absent.
    """
    architecture = header.fields.get("general.architecture")
    if architecture not in _MODEL_TYPES:
        raise ConfigError(
            f"general.architecture of a GGUF file must be one of {', '.join(_MODEL_TYPES)}, got "
            f"{architecture!r}; use the model's safetensors"
        )
    if EMBEDDING not in header.tensors:
        raise ConfigError(f"the GGUF file has no tensor {EMBEDDING}; give one with a whole model")
    fields = _Fields(header.fields, architecture)
    settings = {
        "model_type": _MODEL_TYPES[architecture],
        "vocab_size": header.tensors[EMBEDDING].shape[0],
        "tie_word_embeddings": HEAD not in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        **{ours: fields.required(theirs) for ours, theirs in _NUMBERS.items()},
        **_optional(fields),
        **_token_ids(header.fields),
    }
    settings |= _heads(fields, settings)
    settings["rms_norm_eps"] = fields.decimal("attention.layer_norm_rms_epsilon")
    settings |= _rope(fields, rope_factors)
    return settings | (_gemma(architecture, settings) if architecture in _GLOBAL_EVERY else {})


class _Fields:
    """The fields of one architecture."""

    def __init__(self, fields: Mapping[str, Any], architecture: str) -> None:
        self._fields = fields
        self._prefix = f"{architecture}."

    def get(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(self._prefix + name, default)
        if isinstance(value, list):
            raise ConfigError(
                f"{self._prefix + name} of the GGUF file differs from layer to layer: {value}; "
                "such a model isn't known here"
            )
        return value

    def required(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ConfigError(f"the GGUF file has no field {self._prefix + name}; get it again")
        return value

    def decimal(self, name: str, default: float | None = None) -> float:
        """Give the shortest decimal number that is this float32: 1e-05, not 9.99999975e-06."""
        value = self.required(name) if default is None else self.get(name, default)
        return float(str(np.float32(value)))


def _optional(fields: _Fields) -> dict[str, Any]:
    values = {ours: fields.get(theirs) for ours, theirs in _OPTIONAL.items()}
    return {ours: value for ours, value in values.items() if value is not None}


def _token_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    named = {ours: f"tokenizer.ggml.{theirs}_token_id" for ours, theirs in _TOKENS.items()}
    return {ours: fields[theirs] for ours, theirs in named.items() if theirs in fields}


def _heads(fields: _Fields, settings: Mapping[str, Any]) -> dict[str, Any]:
    heads = settings["num_attention_heads"]
    return {
        "num_key_value_heads": fields.get("attention.head_count_kv", heads),
        "head_dim": fields.get("attention.key_length", settings["hidden_size"] // heads),
    }


def _rope(fields: _Fields, factors: np.ndarray | None) -> dict[str, Any]:
    theta = fields.decimal("rope.freq_base", 10_000.0)
    settings: dict[str, Any] = {"rope_theta": theta}
    if factors is not None:
        return settings | {"rope_scaling": llama3_scaling(factors, theta)}
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        return settings
    if kind != "linear":
        raise ConfigError(
            f"rope.scaling.type of a GGUF file must be none or linear, got {kind!r}; use the "
            "model's safetensors"
        )
    factor = fields.decimal("rope.scaling.factor")
    return settings | {"rope_scaling": {"rope_type": "linear", "factor": factor}}


def _gemma(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    layers, every = settings["num_hidden_layers"], _GLOBAL_EVERY[architecture]
    kinds = ["sliding_attention"] * (every - 1) + ["full_attention"]
    by_width = layers == _SCALED_BY_WIDTH[architecture]
    heads = settings["num_attention_heads"]
    return {
        "layer_types": [kinds[layer % every] for layer in range(layers)],
        "query_pre_attn_scalar": settings["hidden_size"] // heads
        if by_width
        else settings["head_dim"],
        "hidden_activation": "gelu_pytorch_tanh",
        **({"rope_local_base_freq": 10_000.0} if architecture == "gemma3" else {}),
    }
