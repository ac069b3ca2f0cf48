"""From hidden states to logits: a matrix, in some families with a cap on what it gives."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from .attention import capped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CappedHead:
    """An output head whose logits become cap * tanh(logit / cap).

    Attributes:
      matrix: [V, D].
      cap: above 0.
    """

    matrix: Any
    cap: float = field(metadata={"static": True})


Head = jax.Array | CappedHead


def logits(hidden: jax.Array, head: Head) -> jax.Array:
    """Turn hidden states, [..., D], into logits, f32[..., V], before any temperature.

    Example:
      >>> hidden, matrix = jnp.ones((1, 2)), jnp.ones((3, 2))
      >>> logits(hidden, matrix).tolist()
      [[2.0, 2.0, 2.0]]
      >>> bool((logits(hidden, CappedHead(matrix, 1.5)) < 1.5).all())
      True
    """
    matrix, cap = (head.matrix, head.cap) if isinstance(head, CappedHead) else (head, None)
    matrix = matrix.astype(hidden.dtype)  # a frozen head may be narrower
    plain = jnp.einsum("...d,vd->...v", hidden, matrix, preferred_element_type=jnp.float32)
    return capped(plain, cap)
