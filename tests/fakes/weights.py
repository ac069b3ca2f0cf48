"""Parameters in which every number is another, and the names of a Llama-like file."""

from typing import Any

import jax
import numpy as np

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import declare
from headrace.pipeline.models.weights import names
from headrace.pipeline.models.weights.layouts import Entry

VOCAB = 16


def counted(config: ModelConfig, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda weight: rng.standard_normal(weight.shape, np.float32), declare(config, VOCAB)
    )


def entries(config: ModelConfig) -> tuple[Entry, ...]:
    return (
        *names.attention_entries(),
        *(names.qk_norm_entries() if config.qk_norm else ()),
        *names.ffn_entries(),
        *names.norm_entries(),
        *names.outer_entries(tied=config.tied_embeddings),
    )


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)
