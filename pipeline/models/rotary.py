"""Rotary position embedding over split halves: dimension i is paired with i + h/2.

Reference: Su et al., RoFormer (2021), eq. 34, with the pairing of the released Llama weights.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Rotation(NamedTuple):
    """The angles of every token: f32[R, T, h/2] each."""

    cos: jax.Array
    sin: jax.Array


def rotation(positions: jax.Array, *, head_width: int, theta: float) -> Rotation:
    """Compute the rotation of each position, i32[R, T], in f32."""
    exponents = jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width
    frequencies = (1.0 / theta**exponents)[None, None, :]
    angles = positions[:, :, None].astype(jnp.float32) * frequencies
    return Rotation(cos=jnp.cos(angles), sin=jnp.sin(angles))


def rotate(heads: jax.Array, by: Rotation) -> jax.Array:
    """Rotate queries or keys, [R, T, heads, h]; lengths of vectors don't change."""
    low, high = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    cos, sin = by.cos[:, :, None, :], by.sin[:, :, None, :]
    rotated = jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return rotated.astype(heads.dtype)
