"""Gemma 3, its text part: five layers with a window to one without, each kind with its rotation.

A checkpoint that sees pictures too has the text part's configuration inside its own and is
saved as one that reads only text.
"""

from dataclasses import replace
from typing import Any

from ..config import ModelConfig
from ..traits import RopeTraits
from .family import Family, HubConfig
from .gemma2 import DEFAULTS as GEMMA2_DEFAULTS
from .gemma2 import gemma_traits, write_gemma
from .hub_config import (
    FULL,
    SLIDING,
    demand,
    or_default,
    read_sizes,
    required,
    usual_entries,
    write_sizes,
)
from .hub_rope import read_rope, scaling_of, write_rope

ARCHITECTURES = ("Gemma3ForCausalLM",)
WITH_PICTURES = ("Gemma3ForConditionalGeneration",)
DEFAULTS = {
    **GEMMA2_DEFAULTS,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
}
THETA, WINDOWED_THETA = 1_000_000.0, 10_000.0


def config_from(hub: HubConfig) -> ModelConfig:
    """Read config.json."""
    # Transformers has the key but caps no score in this family, and law 15 is about its logits.
    hub = {**DEFAULTS, **hub, "attn_logit_softcapping": None}
    theta, rope = _read_ropes(hub)
    period = hub["sliding_window_pattern"]
    traits = gemma_traits(hub, rope, lambda layer: (layer + 1) % period != 0)
    sizes = read_sizes(hub, tied=True)
    return ModelConfig(**sizes, rope_theta=theta, qk_norm=True, traits=traits)


def text_config_from(hub: HubConfig) -> ModelConfig:
    """Read the config.json of a model that sees pictures; its text part alone is used."""
    text = required(hub, "text_config")
    tied = or_default(text, "tie_word_embeddings", or_default(hub, "tie_word_embeddings", True))
    demand(tied, "tie_word_embeddings", tied, "true")
    return config_from(text)


def config_to(config: ModelConfig) -> dict[str, Any]:
    """Write config.json."""
    rope = config.traits.rope
    return {
        **write_sizes(config, "gemma3_text", ARCHITECTURES[0]),
        **write_rope(config),
        **write_gemma(config),
        "rope_local_base_freq": rope.windowed_theta or config.rope_theta,
    }


def _read_ropes(hub: HubConfig) -> tuple[float, RopeTraits]:
    records = or_default(hub, "rope_parameters", {})
    known = set(records) <= {FULL, SLIDING}
    demand(known, "rope_parameters", records, f"records for {FULL!r} and {SLIDING!r}")
    if not records:
        theta, rope = read_rope(hub, theta=THETA)
        local = or_default(hub, "rope_local_base_freq", WINDOWED_THETA)
        return theta, replace(rope, windowed_theta=float(local))
    # An older "rope_scaling" is about these layers; "truncate" is not read in such records.
    full = {
        **or_default(records, FULL, {}),
        **or_default(hub, "rope_scaling", {}),
        "truncate": True,
    }
    local = or_default(records, SLIDING, {})
    plain = scaling_of(local, None).scaling == "none"
    demand(plain, f"rope_parameters.{SLIDING}", local, "not scaled")
    theta, rope = read_rope({**hub, "rope_scaling": full}, theta=THETA)
    base = or_default(local, "rope_theta", or_default(hub, "rope_local_base_freq", WINDOWED_THETA))
    return theta, replace(rope, windowed_theta=float(base))


GEMMA3_TEXT = Family(config_from, config_to, usual_entries, ARCHITECTURES)
GEMMA3 = Family(
    text_config_from,
    config_to,
    usual_entries,
    WITH_PICTURES,
    prefixes=("model.", "language_model.model.", "model.language_model."),
    ignored=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)
