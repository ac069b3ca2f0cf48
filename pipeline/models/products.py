"""The orders of axes in which the residual stream is multiplied by weights.

The learner's parameters lie [inputs, outputs], the sampler's [outputs, inputs]; a layer is
written once, for both.
"""

from typing import NamedTuple

import jax
from jax import lax


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
