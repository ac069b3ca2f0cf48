"""Mixed precision: the model computes in a narrow type, parameters and gradients stay float32.

Invariant: nothing but the model's own arithmetic is narrow; logits, losses, sums of gradients,
the optimizer's state and the parameters that it moves are float32.

Reference: Micikevicius et al. 2018, "Mixed precision training", section 3.1 (master weights).
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ..models.head import Head
from ..models.model import Forward
from ..models.nf4 import Nf4
from ..models.quantize import Quantized
from .state import Params

ComputeType = Literal["float32", "bfloat16"]


def computed_in(forward: Forward, compute_type: ComputeType) -> Forward:
    """Give a forward function that takes float32 parameters and computes in another type.

    The cast is part of the function, so gradients come back as float32. What is stored in fewer
    bits is left as it is: it is widened to the type of the stream where it is used.
    """
    if compute_type == "float32":
        return forward
    return partial(_forward_in, forward=forward, compute_type=compute_type)


def _forward_in(
    params: Params, *rows: jax.Array, forward: Any, compute_type: ComputeType, **record: jax.Array
) -> tuple[jax.Array, Head]:
    def cast(leaf: Any) -> Any:
        plain = not _is_stored(leaf) and leaf.dtype == jnp.float32
        return leaf.astype(compute_type) if plain else leaf

    result: tuple[jax.Array, Head] = forward(
        jax.tree.map(cast, params, is_leaf=_is_stored), *rows, **record
    )
    return result


def _is_stored(leaf: Any) -> bool:
    return isinstance(leaf, Quantized | Nf4)
