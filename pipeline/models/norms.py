"""Scaling to a root mean square of 1."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .config import ModelConfig
from .products import along


def model_norm(x: jax.Array, weight: jax.Array, config: ModelConfig, *, axis: int) -> jax.Array:
    """Normalise an axis as the model does: in f32, then times `weight`, or 1 + `weight`."""
    wide = weight.astype(jnp.float32)
    return rms_norm(x, 1.0 + wide if config.traits.norms_add_one else wide, config.norm_eps, axis)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def rms_norm(x: jax.Array, weight: jax.Array, eps: float, axis: int) -> jax.Array:
    """Scale an axis to a root mean square of 1, in f32, then by `weight`.

    The backward pass is written out: that of JAX keeps `x` thrice, and its weights as often as
    there are tokens.

    Args:
      weight: f32[D].

    Returns:
      As `x`.
    """
    return _forward(x, weight, eps, axis)[0]


def _forward(x: jax.Array, weight: jax.Array, eps: float, axis: int) -> tuple[jax.Array, Any]:
    wide = x.astype(jnp.float32)
    scale = lax.rsqrt(jnp.mean(jnp.square(wide), axis=axis, keepdims=True) + eps)
    normed = (wide * scale * along(weight, x, axis)).astype(x.dtype)
    return normed, (x, weight, scale)


def _backward(_: float, axis: int, kept: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight, scale = kept
    wide, gradient = x.astype(jnp.float32), gradient.astype(jnp.float32)
    straight = gradient * along(weight, x, axis)
    back = jnp.mean(straight * wide, axis=axis, keepdims=True) * scale**3
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    of_weight = jnp.sum(gradient * (wide * scale), axis=others)
    return (straight * scale - wide * back).astype(x.dtype), of_weight


rms_norm.defvjp(_forward, _backward)
