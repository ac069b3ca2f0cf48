"""How losses of tokens become one number: what each token's loss is multiplied by.

Invariant: the denominators are those of the whole batch, so neither the split into
microbatches nor packing, padding or row order changes a weight. A sequence is one segment of a
row; one without any counted token counts nowhere.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .config import AlgorithmConfig
from .sequences import last_counted, segment_sum


class Counts(NamedTuple):
    """How much of the whole batch counts.

    Attributes:
      tokens: i32[], tokens.
      sequences: i32[], sequences that have at least one of them.
    """

    tokens: jax.Array
    sequences: jax.Array


Aggregation = Callable[[Counts, jax.Array, jax.Array], jax.Array]
"""`(counts of the batch, loss_mask bool[R, T], segment_ids i32[R, T])` gives each token's weight,
f32[] or f32[R, T], finite everywhere; where the mask is false it may be anything."""


def count(counted: jax.Array, segment_ids: jax.Array) -> Counts:
    """Count the tokens and sequences of a batch: bool[..., T] and i32[..., T]."""
    return Counts(
        jnp.sum(counted, dtype=jnp.int32),
        jnp.sum(last_counted(counted, segment_ids), dtype=jnp.int32),
    )


def token_mean(counts: Counts, loss_mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Weigh all tokens alike: `1 / sum_i |o_i|`. Long sequences matter more.

    Reference: Yu et al. 2025, DAPO, equation 8.
    """
    return 1.0 / _at_least_one(counts.tokens)


def sequence_mean(counts: Counts, loss_mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Weigh all sequences alike, and in each its tokens: `1 / (N |o_i|)`.

    Reference: Shao et al. 2024, DeepSeekMath, equation 3.
    """
    own = segment_sum(loss_mask.astype(jnp.float32), segment_ids)
    return 1.0 / (_at_least_one(counts.sequences) * jnp.maximum(own, 1.0))


def sequence_sum(counts: Counts, loss_mask: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Add a sequence's tokens up and take the mean over sequences: `1 / N`.

    Reference: Williams 1992, REINFORCE; Ahmadian et al. 2024, RLOO, equation 8.
    """
    return 1.0 / _at_least_one(counts.sequences)


def fixed_scale(
    counts: Counts, loss_mask: jax.Array, segment_ids: jax.Array, *, tokens: int
) -> jax.Array:
    """Weigh all tokens by a constant and the number of sequences: `1 / (N tokens)`.

    Args:
      tokens: >= 1, usually the most that a sequence can have.

    Reference: Liu et al. 2025, "Understanding R1-Zero-like training" (Dr. GRPO), section 3.2.
    """
    return sequence_sum(counts, loss_mask, segment_ids) / tokens


def aggregation(config: AlgorithmConfig) -> Aggregation:
    """Give the function that a configuration names.

    Raises:
      ValueError: for `fixed_scale` without a number of tokens.
    """
    if config.aggregation == "fixed_scale" and config.scale_tokens < 1:
        raise ValueError(
            "aggregation 'fixed_scale' needs scale_tokens >= 1, got "
            f"{config.scale_tokens}; set it to the token budget of a sequence"
        )
    table: dict[str, Aggregation] = {
        "token_mean": token_mean,
        "sequence_mean": sequence_mean,
        "sequence_sum": sequence_sum,
        "fixed_scale": partial(fixed_scale, tokens=config.scale_tokens),
    }
    return table[config.aggregation]


def _at_least_one(number: jax.Array) -> jax.Array:
    return jnp.maximum(number, 1).astype(jnp.float32)
