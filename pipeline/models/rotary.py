"""Rotary position embedding over split halves: dimension i is paired with i + h/2.

Reference: Su et al., RoFormer (2021), eq. 34, with the pairing of the released Llama weights.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .traits import RopeTraits

UNSCALED = RopeTraits()


class Rotation(NamedTuple):
    """The angles of every token: f32[R, T, h/2] each."""

    cos: jax.Array
    sin: jax.Array


def rotation(
    positions: jax.Array, *, head_width: int, theta: float, scaling: RopeTraits = UNSCALED
) -> Rotation:
    """Compute the rotation of each position, i32[R, T], in f32."""
    exponents = jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width
    frequencies = scaled_frequencies(1.0 / theta**exponents, scaling)[None, None, :]
    angles = positions[:, :, None].astype(jnp.float32) * frequencies
    return Rotation(cos=jnp.cos(angles), sin=jnp.sin(angles))


def scaled_frequencies(frequencies: jax.Array, scaling: RopeTraits) -> jax.Array:
    """Slow rotations down for contexts longer than the pretraining's.

    Args:
      frequencies: f32[h/2], in radians per position.

    Example:
      >>> scaled_frequencies(jnp.array([1.0, 0.5]), RopeTraits("linear", factor=4.0)).tolist()
      [0.25, 0.125]

    Reference: Chen et al., Position Interpolation (2023) for "linear"; for "llama3" the
      model card of Llama 3.1, whose rule is by the number of turns within the original context.
    """
    if scaling.scaling == "none":
        return frequencies
    slow = frequencies / scaling.factor
    if scaling.scaling == "linear":
        return slow
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_tokens * frequencies / (2 * math.pi)
    kept = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1.0 - kept) * slow


def rotate(heads: jax.Array, by: Rotation) -> jax.Array:
    """Rotate queries or keys, [R, T, heads, h]; lengths of vectors don't change."""
    low, high = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cos, sin = by.cos[:, :, None, :], by.sin[:, :, None, :]
    rotated = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return rotated.astype(heads.dtype)
