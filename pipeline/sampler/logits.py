"""How one token is drawn: with one uniform number a row, which only key and position decide.

The draw inverts the cumulative distribution on two levels, blocks of the vocabulary and
tokens of one block: one uniform and a block's running sum instead of noise over the whole
vocabulary. A token of probability 0 is never drawn, however the sums round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 128  # tokens of the vocabulary per block


class Draw(NamedTuple):
    """One token a row.

    Attributes:
      token: i32[S].
      logprob: f32[S], of the temperature-scaled distribution; of the unscaled one where
        the temperature is 0.
    """

    token: jax.Array
    logprob: jax.Array


def pick(logits: jax.Array, keys: jax.Array, positions: jax.Array, temperature: jax.Array) -> Draw:
    """Draw the token at an absolute position of each row.

    Args:
      logits: f32[S, V]; -inf excludes a token.
      keys: u32[S, 2], the trajectories' keys.
      positions: i32[S], where the drawn tokens will stand.
      temperature: f32[S]; 0 takes the most likely token.
    """
    greedy = temperature == 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    highest = scaled.max(axis=-1, keepdims=True)
    mass = jnp.exp(scaled - highest)
    drawn = draw_from_mass(mass, uniforms(keys, positions))
    token = jnp.where(greedy, jnp.argmax(logits, axis=-1).astype(jnp.int32), drawn)
    chosen = jnp.take_along_axis(scaled, token[:, None], axis=1)
    logprob = chosen - highest - jnp.log(mass.sum(axis=-1, keepdims=True))
    return Draw(token, logprob[:, 0])


def uniforms(keys: jax.Array, positions: jax.Array) -> jax.Array:
    """One number in [0, 1) a row: of the key `fold_in(key, position)`, f32[S]."""

    def one(key: jax.Array, position: jax.Array) -> jax.Array:
        folded = jax.random.fold_in(jax.random.wrap_key_data(key), position)
        return jax.random.uniform(folded, (), jnp.float32)

    return jax.vmap(one)(keys, positions)


def draw_from_mass(mass: jax.Array, uniform: jax.Array) -> jax.Array:
    """Invert the cumulative distribution of each row.

    Args:
      mass: f32[S, V], at least 0, not all 0, any scale.
      uniform: f32[S], in [0, 1).

    Returns:
      i32[S]: the first token at which the running share of the mass exceeds `uniform`.
    """
    rows, vocab_size = mass.shape
    block = min(BLOCK, vocab_size)
    padded = jnp.pad(mass, ((0, 0), (0, -vocab_size % block)))
    blocks = padded.reshape(rows, -1, block)
    block_mass = blocks.sum(axis=-1)
    target = uniform * block_mass.sum(axis=-1)
    which, below = _first_beyond(block_mass, target)
    inside = jnp.take_along_axis(blocks, which[:, None, None], axis=1)[:, 0]
    token, _ = _first_beyond(inside, target - below)
    return which * block + token


def _first_beyond(mass: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first entry with mass whose running sum exceeds the target, and the sum before it.

    Where rounding leaves none, the last entry with mass. (Running sums come from a tree of
    partial sums, so they may even fall by an ulp: hence the test for mass.)
    """
    last_index = mass.shape[-1] - 1
    sums = jnp.cumsum(mass, axis=-1)
    beyond = (mass > 0) & (sums > target[:, None])
    last = last_index - lax.argmax((mass > 0)[:, ::-1], 1, jnp.int32)
    index = jnp.where(beyond.any(axis=-1), lax.argmax(beyond, 1, jnp.int32), last)
    before = jnp.take_along_axis(sums - mass, index[:, None], axis=1)[:, 0]
    return index, before
