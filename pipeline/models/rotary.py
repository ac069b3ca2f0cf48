"""Rotary position embedding over split halves: dimension i is paired with i + h/2.

Reference: Su et al., RoFormer (2021), eq. 34, with the pairing of the released Llama weights.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .once import once
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
    frequencies = scaled_frequencies(1.0 / theta**exponents, scaling, theta=theta)[None, None, :]

    def turn(positions: jax.Array) -> Rotation:
        angles = positions[:, :, None].astype(jnp.float32) * frequencies
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        if scaling.amplitude != 1:
            cos, sin = scaling.amplitude * cos, scaling.amplitude * sin
        return Rotation(cos=cos, sin=sin)

    return once(turn, positions)


def scaled_frequencies(
    frequencies: jax.Array, scaling: RopeTraits, *, theta: float = 10_000.0
) -> jax.Array:
    """Slow rotations down for contexts longer than the pretraining's.

    Args:
      frequencies: f32[h/2], in radians per position.
      theta: their base, which "yarn" needs.

    Example:
      >>> scaled_frequencies(jnp.array([1.0, 0.5]), RopeTraits("linear", factor=4.0)).tolist()
      [0.25, 0.125]

    Reference: Chen et al., Position Interpolation (2023) for "linear"; the code of Llama 3.1 for
      "llama3"; Peng et al., YaRN (2023), section 3.2, for "yarn".
    """
    if scaling.scaling == "none":
        return frequencies
    slow = frequencies / scaling.factor
    if scaling.scaling == "linear":
        return slow
    kept = _kept_by_dimension if scaling.scaling == "yarn" else _kept_by_turns
    share = kept(frequencies, scaling, theta)
    return share * frequencies + (1.0 - share) * slow


def _kept_by_turns(frequencies: jax.Array, scaling: RopeTraits, theta: float) -> jax.Array:
    """How much of each frequency stays, linear in its turns within the original context."""
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns = scaling.original_tokens * frequencies / (2 * math.pi)
    return jnp.clip((turns - low) / (high - low), 0.0, 1.0)


def _kept_by_dimension(frequencies: jax.Array, scaling: RopeTraits, theta: float) -> jax.Array:
    """How much of each frequency stays, linear in its number, between those of two turns."""
    width = 2 * frequencies.shape[0]

    def number(turns: float) -> float:
        """Which frequency turns so often within the original context, as a real number."""
        return (
            width * math.log(scaling.original_tokens / (turns * 2 * math.pi)) / math.log(theta) / 2
        )

    first, last = number(scaling.high_frequency_factor), number(scaling.low_frequency_factor)
    if scaling.whole_dimensions:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    length = last - first or 1e-3
    index = jnp.arange(frequencies.shape[0], dtype=jnp.float32)
    return 1.0 - jnp.clip((index - first) / length, 0.0, 1.0)


def rotate(heads: jax.Array, by: Rotation) -> jax.Array:
    """Rotate queries or keys, [R, T, heads, h]; lengths change by the amplitude alone."""
    low, high = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cos, sin = by.cos[:, :, None, :], by.sin[:, :, None, :]
    rotated = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return rotated.astype(heads.dtype)
