"""What changes logits before the temperature: penalties, biases and allowed tokens.

A neutral value leaves the bits of a logit as they are, so rows that ask for nothing may share
the computation with rows that do.

References: Keskar et al. 2019, "CTRL" (arXiv:1909.05858), section 4.1, for the repetition
penalty; the OpenAI API for the presence and frequency penalties.
"""

import jax
import jax.numpy as jnp

from .options import ALL_ALLOWED, DrawOptions

_IN_PROMPT, _ONCE_SAMPLED = 1, 2  # of a token's count: 2 a sampled one, 1 in the prompt


def count_tokens(
    tokens: jax.Array, valid: jax.Array, sampled: jax.Array, vocab_size: int
) -> jax.Array:
    """Count what penalties need of each row's tokens so far.

    Args:
      tokens: i32[S, W], ids in any order; anything where not valid.
      valid: bool[S, W].
      sampled: bool[S, W], whether the request sampled the token; else it is of its prompt.

    Returns:
      i32[S, V]: twice how often each token was sampled, plus 1 if the prompt has it.
    """
    rows = jnp.arange(tokens.shape[0])[:, None]
    counts = jnp.zeros((tokens.shape[0], vocab_size), jnp.int32)
    prompt = jnp.where(valid & ~sampled, tokens, vocab_size)
    drawn = jnp.where(valid & sampled, tokens, vocab_size)
    counts = counts.at[rows, prompt].max(_IN_PROMPT, mode="drop")
    return counts.at[rows, drawn].add(_ONCE_SAMPLED, mode="drop")


def add_token(counts: jax.Array, token: jax.Array, active: jax.Array) -> jax.Array:
    """Count one more sampled token of each active row.

    Args:
      counts: i32[S, V], of `count_tokens`.
      token: i32[S].
      active: bool[S].
    """
    rows = jnp.arange(counts.shape[0])
    return counts.at[rows, token].add(_ONCE_SAMPLED * active.astype(jnp.int32))


def penalises(options: DrawOptions) -> jax.Array:
    """Which rows need the counts, bool[S]."""
    asked: jax.Array = options.repetition_penalty != 1
    asked |= options.presence_penalty != 0
    asked |= options.frequency_penalty != 0
    return asked


def adjusts(options: DrawOptions) -> jax.Array:
    """Which rows have logits that `adjusted` changes, bool[S]."""
    changed: jax.Array = penalises(options)
    changed |= (options.bias_ids >= 0).any(axis=-1)
    if options.allowed is not None:
        changed |= (options.allowed != jnp.uint32(ALL_ALLOWED)).any(axis=-1)
    return changed


def adjusted(logits: jax.Array, options: DrawOptions, counts: jax.Array | None) -> jax.Array:
    """Apply penalties, then biases, then the allowed tokens.

    Args:
      logits: f32[S, V].
      counts: i32[S, V], of `count_tokens`; None where no row can have penalties.
    """
    if counts is not None:
        logits = _penalised(logits, options, counts)
    rows = jnp.arange(logits.shape[0])[:, None]
    ids = jnp.where(options.bias_ids < 0, logits.shape[1], options.bias_ids)
    logits = logits.at[rows, ids].add(options.biases, mode="drop")
    if options.allowed is None:
        return logits
    return jnp.where(_unpacked(options.allowed, logits.shape[1]), logits, -jnp.inf)


def _penalised(logits: jax.Array, options: DrawOptions, counts: jax.Array) -> jax.Array:
    repetition = options.repetition_penalty[:, None]
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(counts > 0, repeated, logits)
    times = (counts // _ONCE_SAMPLED).astype(jnp.float32)
    presence = options.presence_penalty[:, None] * (times > 0).astype(jnp.float32)
    frequency = options.frequency_penalty[:, None] * times
    penalised: jax.Array = logits - presence - frequency
    return penalised


def _unpacked(words: jax.Array, vocab_size: int) -> jax.Array:
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None, :]) & 1
    return bits.reshape(words.shape[0], -1)[:, :vocab_size] != 0
