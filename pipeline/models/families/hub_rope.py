"""Rotary embeddings in config.json: older files spread them over keys, newer ones have a record.

Older: "rope_theta" and "rope_scaling"; newer: "rope_parameters", in some families one for
each type of layer.
"""

import math
from collections.abc import Mapping
from typing import Any

from ..config import ModelConfig
from ..traits import RopeTraits
from .family import HubConfig
from .hub_config import demand, or_default

DEFAULT_THETA = 10_000.0


def read_rope(hub: HubConfig, *, theta: float = DEFAULT_THETA) -> tuple[float, RopeTraits]:
    """Read the base of the wavelengths, and how they are scaled.

    Args:
      theta: the base where the file has none.
    """
    record = or_default(hub, "rope_scaling", None) or or_default(hub, "rope_parameters", {})
    is_one = isinstance(record, Mapping) and not any(
        isinstance(value, Mapping) for value in record.values()
    )
    demand(is_one, "rope_parameters", record, "one record for all layers")
    original = "original_max_position_embeddings"
    if hub.get(original) is not None:  # Transformers prefers it to the record's
        record = {**record, original: hub[original]}
    base = or_default(record, "rope_theta", or_default(hub, "rope_theta", theta))
    share = or_default(
        record, "partial_rotary_factor", or_default(hub, "partial_rotary_factor", 1)
    )
    demand(share == 1, "partial_rotary_factor", share, "1, which is the whole head")
    return float(base), scaling_of(record, or_default(hub, "max_position_embeddings", None))


def scaling_of(record: Mapping[str, Any], context_tokens: int | None) -> RopeTraits:
    """Read one record of how wavelengths are scaled.

    Args:
      context_tokens: the original context where the record doesn't say it.
    """
    kind = or_default(record, "rope_type", or_default(record, "type", "default"))
    known = ("default", "linear", "llama3", "yarn")
    demand(kind in known, "rope_type", kind, f"one of {', '.join(known)}")
    if kind == "default":
        return RopeTraits()
    factor = float(_number(record, "factor"))
    if kind == "linear":
        return RopeTraits("linear", factor)
    original = or_default(record, "original_max_position_embeddings", context_tokens)
    demand(original is not None, "original_max_position_embeddings", original, f"given for {kind}")
    if kind == "yarn":
        return _yarn(record, factor, original)
    return RopeTraits(
        "llama3",
        factor,
        low_frequency_factor=float(_number(record, "low_freq_factor")),
        high_frequency_factor=float(_number(record, "high_freq_factor")),
        original_tokens=original,
    )


def _yarn(record: Mapping[str, Any], factor: float, original: int) -> RopeTraits:
    own, all_widths = record.get("mscale"), record.get("mscale_all_dim")
    amplitude = _amplitude(factor)
    if own and all_widths:
        amplitude = _amplitude(factor, own) / _amplitude(factor, all_widths)
    return RopeTraits(
        "yarn",
        factor,
        low_frequency_factor=float(record.get("beta_slow") or 1),
        high_frequency_factor=float(record.get("beta_fast") or 32),
        original_tokens=original,
        amplitude=float(or_default(record, "attention_factor", amplitude)),
        whole_dimensions=or_default(record, "truncate", True),
    )


def _amplitude(factor: float, slope: float = 1.0) -> float:
    return 0.1 * slope * math.log(factor) + 1.0


def write_rope(config: ModelConfig) -> dict[str, Any]:
    """Undo `read_rope`, with the older keys, which all versions read."""
    return {"rope_theta": config.rope_theta, "rope_scaling": scaling_record(config.traits.rope)}


def scaling_record(rope: RopeTraits) -> dict[str, Any] | None:
    """Undo `scaling_of`."""
    if rope.scaling == "none":
        return None
    record: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "yarn":
        record |= {
            "beta_slow": rope.low_frequency_factor,
            "beta_fast": rope.high_frequency_factor,
            "original_max_position_embeddings": rope.original_tokens,
            "attention_factor": rope.amplitude,
            "truncate": rope.whole_dimensions,
        }
    if rope.scaling == "llama3":
        record |= {
            "low_freq_factor": rope.low_frequency_factor,
            "high_freq_factor": rope.high_frequency_factor,
            "original_max_position_embeddings": rope.original_tokens,
        }
    return record


def _number(record: Mapping[str, Any], key: str) -> float:
    value = record.get(key)
    demand(isinstance(value, int | float), key, value, "a number, for a rotation that is scaled")
    assert isinstance(value, int | float)
    return value
