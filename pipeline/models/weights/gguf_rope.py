"""Llama 3's scaled rotary wavelengths, which GGUF files hold as a table instead of its rule.

Reference: the repository ggml-org/llama.cpp, convert_hf_to_gguf.py, rope_freqs; the rule itself
is that of `models.rotary`.
"""

import math
from typing import Any

import numpy as np

from ...errors import ConfigError
from .gguf_names import ROPE_FACTORS

# What all released models of Llama 3 have.
LOW, HIGH, ORIGINAL_TOKENS = 1.0, 4.0, 8192


def llama3_scaling(factors: np.ndarray, theta: float) -> dict[str, Any]:
    """Return the `rope_scaling` of config.json that gives a table.

    Args:
      factors: f32[h / 2], by which each wavelength grows.
      theta: base of the wavelengths.

    Raises:
      ConfigError: for a table that isn't Llama 3's.
    """
    factor = float(factors.max())
    if not np.allclose(factors, _table(len(factors), theta, factor), rtol=1e-4):
        raise ConfigError(
            f"the GGUF file scales its rotary wavelengths by a table, {ROPE_FACTORS}, that isn't "
            "Llama 3's; use the model's safetensors"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL_TOKENS,
    }


def _table(pairs: int, theta: float, factor: float) -> np.ndarray:
    wavelengths = 2 * math.pi * theta ** (np.arange(pairs) / pairs)
    share = (ORIGINAL_TOKENS / wavelengths - LOW) / (HIGH - LOW)  # of the unchanged wavelength
    share = np.clip(share, 0.0, 1.0)
    return np.asarray(1 / ((1 - share) / factor + share))
