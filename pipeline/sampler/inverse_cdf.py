"""A token from a distribution and one uniform number.

The draw inverts the cumulative distribution on two levels, blocks of the vocabulary and
tokens of one block: one uniform and a block's running sum instead of noise over the whole
vocabulary. A token of probability 0 is never drawn, however the sums round.
"""

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 128  # tokens of the vocabulary per block


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
    blocks = _blocks(mass, 0)
    block_mass = blocks.sum(axis=-1)
    token = _locate(blocks, block_mass, uniform * block_mass.sum(axis=-1))
    # Without any mass, as of logits that are NaN, it would lie in the padding.
    return jnp.minimum(token, mass.shape[1] - 1)


def nth_set(flags: jax.Array, count: jax.Array) -> jax.Array:
    """The index of each row's `count`-th set flag, of the last one where there are fewer.

    Args:
      flags: bool[S, V]; V is below 2**24.
      count: f32[S], at least 1.
    """
    blocks = _blocks(flags.astype(jnp.float32), 0)
    return _locate(blocks, blocks.sum(axis=-1), count - 0.5)


def most_likely(logits: jax.Array) -> jax.Array:
    """`argmax` of each row, i32[S]: the lowest id of the highest logit."""
    blocks = _blocks(logits, -jnp.inf)
    which = lax.argmax(blocks.max(axis=-1), 1, jnp.int32)
    inside = jnp.take_along_axis(blocks, which[:, None, None], axis=1)[:, 0]
    return which * blocks.shape[-1] + lax.argmax(inside, 1, jnp.int32)


def _blocks(values: jax.Array, padding: float) -> jax.Array:
    """Cut [S, V] into [S, n, BLOCK]."""
    rows, vocab_size = values.shape
    block = min(BLOCK, vocab_size)
    spare = -vocab_size % block
    padded = jnp.pad(values, ((0, 0), (0, spare)), constant_values=padding)
    return padded.reshape(rows, -1, block)


def _locate(blocks: jax.Array, block_mass: jax.Array, target: jax.Array) -> jax.Array:
    which, below = _first_beyond(block_mass, target)
    inside = jnp.take_along_axis(blocks, which[:, None, None], axis=1)[:, 0]
    token, _ = _first_beyond(inside, target - below)
    return which * blocks.shape[-1] + token


def _first_beyond(mass: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The first entry with mass whose running sum exceeds the target, and the sum before it.

    Where rounding leaves none, the last entry with mass. (Running sums come from a tree of
    partial sums, so they may even fall by an ulp: hence the test for mass.)
    """
    size = mass.shape[-1]
    sums = jnp.cumsum(mass, axis=-1)
    beyond = (mass > 0) & (sums > target[:, None])
    # Not by reversing: where entries are cut over devices, that makes all of them wait for each
    # other, and those of other rows may have left the loop. Without any mass it is the last entry.
    ids = jnp.arange(size, dtype=jnp.int32)
    last = jnp.where(mass > 0, ids[None], -1).max(axis=-1) % size
    index = jnp.where(beyond.any(axis=-1), lax.argmax(beyond, 1, jnp.int32), last)
    before = jnp.take_along_axis(sums - mass, index[:, None], axis=1)[:, 0]
    return index, before
