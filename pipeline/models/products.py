"""How the residual stream is multiplied by weights: orders of axes, and sums of narrow floats.

The learner's parameters lie [inputs, outputs], the sampler's [outputs, inputs]; a layer is
written once, for both.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

NARROW_PRODUCT = "narrow product"  # the name of those that are rounded after their sum


class Form(NamedTuple):
    """An order of axes: of the residual stream, and of the weights that multiply it.

    Attributes:
      axis: the residual stream's axis of features.
      to_heads: the product that gives queries, keys and values.
      from_heads: the product that takes attention's result back.
      ffn: the feed-forward layer's products.
    """

    axis: int
    to_heads: str
    from_heads: str
    ffn: str


# The learner's: the stream [R, T, D], weights [inputs, outputs].
FEATURES_LAST = Form(-1, "rtd,dnh->rtnh", "rtnh,nhd->rtd", "rtd,df->rtf")
# The sampler's: the stream [D, R, T], weights [outputs, inputs]. A decode step has few tokens
# and many weights. XLA's CPU products pack or stride over their right operand, so the weights
# are the left one, read in order: with 32 rows a step took a quarter less time. A sum over heads
# (n) and their width (w) runs as both lie in memory, since einsum takes letters by the alphabet;
# in any other order XLA turns the weights round in every step.
FEATURES_FIRST = Form(0, "nwd,drt->nwrt", "dnw,rtnw->drt", "fd,drt->frt")


def tokens_first(heads: jax.Array, form: Form) -> jax.Array:
    """Give queries, keys or values as [R, T, heads, h], whatever the form."""
    if form is FEATURES_LAST:
        return heads
    return kept(heads).transpose(2, 3, 0, 1)


def along(vector: jax.Array, x: jax.Array, axis: int) -> jax.Array:
    """Turn a vector so that it lies along an axis of `x`."""
    others = [other for other in range(x.ndim) if other != axis % x.ndim]
    return lax.expand_dims(vector, others)


def kept(x: jax.Array) -> jax.Array:
    """Give the same array; no transposition is moved across it, into a product or out of it."""
    same: jax.Array = lax.optimization_barrier(x)  # type: ignore[no-untyped-call]
    return same


@jax.custom_vjp
def summed_in_float32(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """Multiply narrow floats by a matrix, forward and backward, with sums in float32.

    XLA's CPU code multiplies narrow operands as they are only where the result is float32; else,
    and so in the backward pass that JAX writes, it widens them first, and takes twice as long.

    Args:
      x: [..., d].
      matrix: [d, f], of the same type.

    Returns:
      f32[..., f].
    """
    return _product(x, matrix)


def _product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    return jnp.matmul(x, matrix, preferred_element_type=jnp.float32)


def _forward(x: Any, matrix: Any) -> tuple[jax.Array, Any]:
    # A frozen matrix needs no gradient, and so no `x` of every layer waits for one.
    kept_x = x.value if matrix.perturbed else None
    return _product(x.value, matrix.value), (kept_x, matrix.value)


def _backward(operands: Any, gradient: Any) -> tuple[jax.Array, jax.Array | None]:
    x, matrix = operands
    narrow = gradient.astype(matrix.dtype)
    of_x = _product(narrow, matrix.T).astype(matrix.dtype)
    if x is None:
        return of_x, None
    # Over all axes at once: over one, XLA's CPU code widens the operands here, too.
    axes = tuple(range(x.ndim - 1))
    of_matrix = jnp.tensordot(x, narrow, (axes, axes), preferred_element_type=jnp.float32)
    return of_x, of_matrix.astype(matrix.dtype)


summed_in_float32.defvjp(_forward, _backward, symbolic_zeros=True)
