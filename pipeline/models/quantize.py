"""The sampler's weights as they are stored: float32, bfloat16, or int8 with a scale per output.

The learner's own weights are never rounded: each publish makes the stored ones from them anew,
so errors of rounding don't add up over a run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .config import ModelConfig, StoredWeights
from .parameters import Params, unstack, unstacked_axes

LARGEST = 127  # -128 is left out, so that a weight and its negative are rounded alike

# How many axes of outputs each matrix begins with; those that a product sums over come after
# them. For the embedding, and so the head, an output is a token: as input, its row. A router's
# matrix isn't rounded: it is small, and which experts it chooses matters more than its size.
OUTPUT_AXES = {
    "embedding": 1,
    "head": 1,
    "query": 2,
    "key": 2,
    "value": 2,
    "output": 1,
    "gate": 1,
    "up": 1,
    "down": 1,
    "expert_gate": 2,
    "expert_up": 2,
    "expert_down": 1,
}


class Quantized(NamedTuple):
    """A matrix of which each output has its own scale: `values * scales`, about.

    Attributes:
      values: i8[outputs..., inputs...], in -127..127.
      scales: f32[outputs...], above 0; the axes of inputs are those beyond its own.
    """

    values: Any
    scales: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the matrix."""
        shape: tuple[int, ...] = self.values.shape
        return shape


Matrix = jax.Array | Quantized


def sampler_params(params: Params, weights: StoredWeights = "float32") -> Params:
    """Turn the learner's parameters into the sampler's, as it stores them; pure.

    Returns:
      What `unstack` gives; for "int8" every matrix of it is `Quantized`, and norms are float32.
      Every leaf is a copy.
    """
    if weights == "int8":
        return quantize(unstack(params))
    return unstack(params, jnp.dtype(weights))


def activations_dtype(weights: StoredWeights) -> jnp.dtype:
    """The type that the sampler computes with, and so that of keys and values."""
    return jnp.dtype("float32" if weights == "int8" else weights)


def sampler_axes(config: ModelConfig, weights: StoredWeights = "float32") -> Params:
    """Give the logical axis names of every array, in the structure of `sampler_params`."""
    axes = unstacked_axes(config)
    if weights != "int8":
        return axes
    return _with_matrices(axes, lambda names, outputs: Quantized(names, names[:outputs]))


def quantize(params: Params) -> Params:
    """Round every matrix of the sampler's parameters to int8; norms stay as they are.

    No weight moves by more than half of its output's scale, which is the largest magnitude
    among that output's weights / 127.

    Args:
      params: from `parameters.unstack`, outputs first.
    """
    return _with_matrices(params, quantize_matrix)


def quantize_matrix(matrix: jax.Array, outputs: int) -> Quantized:
    """Round one matrix.

    Args:
      matrix: float[outputs..., inputs...].
      outputs: how many axes are of outputs.

    Example:
      >>> rounded = quantize_matrix(jnp.array([[127.0, -63.0], [0.0, 0.0]]), 1)
      >>> rounded.values.tolist(), rounded.scales.tolist()
      ([[127, -63], [0, 0]], [1.0, 1.0])
    """
    inputs = tuple(range(outputs, matrix.ndim))
    wide = matrix.astype(jnp.float32)
    scales = jnp.max(jnp.abs(wide), axis=inputs) / LARGEST
    scales = jnp.where(scales == 0, 1.0, scales)  # all its weights are 0
    values = jnp.round(wide / jnp.expand_dims(scales, inputs))
    return Quantized(jnp.clip(values, -LARGEST, LARGEST).astype(jnp.int8), scales)


def look_up(matrix: Matrix, outputs: jax.Array) -> jax.Array:
    """Take the rows of some outputs, i32[...], of a matrix with one axis of outputs."""
    if not isinstance(matrix, Quantized):
        return matrix[outputs]
    rows: jax.Array = (
        matrix.values[outputs].astype(jnp.float32) * matrix.scales[outputs][..., None]
    )
    return rows


def unscaled(matrix: Matrix, x: jax.Array) -> jax.Array:
    """Give what a product with `x` multiplies; `scaled` makes its result right."""
    if not isinstance(matrix, Quantized):
        return matrix
    # Tied to x: else XLA widens all weights before the loop of decode and keeps them wide.
    values, x = lax.optimization_barrier((matrix.values, x))  # type: ignore[no-untyped-call]
    wide: jax.Array = values.astype(x.dtype)
    return wide


def scaled(result: jax.Array, matrix: Matrix) -> jax.Array:
    """Scale a product with `unscaled(matrix)`, [outputs..., ...]: once for all inputs."""
    if not isinstance(matrix, Quantized):
        return result
    others = tuple(range(matrix.scales.ndim, result.ndim))
    return result * jnp.expand_dims(matrix.scales, others)


def _with_matrices(params: Params, change: Callable[[Any, int], Any]) -> Params:
    """Change every matrix, given how many axes of outputs it has; of parameters or their axes."""

    def changed(named: Params) -> Params:
        return {
            name: change(leaf, OUTPUT_AXES[name]) if name in OUTPUT_AXES else leaf
            for name, leaf in named.items()
        }

    return changed(params) | {"layers": [changed(layer) for layer in params["layers"]]}
