"""Families of models, by the "model_type" of config.json. Each is one small file.

A family is two functions, from config.json to `ModelConfig` and back, and a table of names; the
decoder itself is the same for all.
"""

from ...errors import ConfigError
from .family import Family, HubConfig
from .gemma2 import GEMMA2
from .gemma3 import GEMMA3, GEMMA3_TEXT
from .hub_config import demand
from .llama import LLAMA
from .mistral import MISTRAL
from .qwen2 import QWEN2
from .qwen3 import QWEN3
from .qwen3_moe import QWEN3_MOE

FAMILIES: dict[str, Family] = {
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3_TEXT,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
}


def family_of(hub: HubConfig) -> Family:
    """Find the family of a checkpoint by its config.json.

    Raises:
      ConfigError: for a family, an architecture or a way of storing weights that isn't known.
    """
    kind = hub.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ConfigError(
            f"config.json: model_type must be one of {known}, got {kind!r}; "
            "docs/models.md says how to add a family"
        )
    family = FAMILIES[kind]
    names = hub.get("architectures") or list(family.architectures)
    fits = any(name in family.architectures for name in names)
    demand(fits, "architectures", names, f"one of {', '.join(family.architectures)}")
    stored = hub.get("quantization_config")
    demand(stored is None, "quantization_config", stored, "absent: weights in floating point")
    return family
