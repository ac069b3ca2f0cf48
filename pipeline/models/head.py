"""From hidden states to logits: a matrix, and what else must be known of it."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from .attention import capped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OutputHead:
    """An output head that is more than its matrix.

    Attributes:
      matrix: [V, D].
      cap: above 0; logits become cap * tanh(logit / cap). None leaves them.
      parts: consecutive parts of the vocabulary, all of one size, that lie on different devices,
        such as the size of a mesh's tensor axis: no part is then moved to score tokens.
    """

    matrix: Any
    cap: float | None = field(default=None, metadata={"static": True})
    parts: int = field(default=1, metadata={"static": True})


Head = jax.Array | OutputHead


def as_output_head(head: Head) -> OutputHead:
    """Give a matrix the form of those that are more."""
    return head if isinstance(head, OutputHead) else OutputHead(head)


def logits(hidden: jax.Array, head: Head) -> jax.Array:
    """Turn hidden states, [..., D], into logits, f32[..., V], before any temperature.

    Example:
      >>> hidden, matrix = jnp.ones((1, 2)), jnp.ones((3, 2))
      >>> logits(hidden, matrix).tolist()
      [[2.0, 2.0, 2.0]]
      >>> bool((logits(hidden, OutputHead(matrix, 1.5)) < 1.5).all())
      True
    """
    head = as_output_head(head)
    matrix = head.matrix.astype(hidden.dtype)  # a frozen head may be narrower
    plain = jnp.einsum("...d,vd->...v", hidden, matrix, preferred_element_type=jnp.float32)
    return capped(plain, head.cap)
