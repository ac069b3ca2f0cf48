"""A matrix of the parameters is stored in one of several ways; here is the product of each.

Plain floats; `Quantized` by a scale per output; for the learner alone floats narrower than what
they multiply, and `Nf4`; and `Adapted`, any of these with a trained change of low rank.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from .frozen import Frozen, plain
from .nf4 import Nf4
from .products import NARROW_PRODUCT, summed_in_float32
from .quantize import Quantized, scaled, unscaled

STREAM = "r"  # the letter of rows: only the stream's operand of a product has it
TOKENS = "rt"  # with which the learner's stream begins
RANK = "l"  # the letter of an adapter's rank: no product of the decoder uses it


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted:
    """A matrix and a change of low rank, which stays apart: base + scale * (a times b).

    Attributes:
      base: the matrix.
      a: from inputs to the rank: [inputs..., r], or [r, inputs...] where outputs come first.
      b: from the rank to outputs: [r, outputs...], or [outputs..., r].
      scale: static.
    """

    base: Any  # of the tree's leaves: arrays, or what describes them
    a: Any
    b: Any
    scale: float = field(metadata={"static": True})


Matrix = Frozen | Adapted


def multiply(
    product: str, x: jax.Array, matrix: Matrix, dtype: DTypeLike | None = None
) -> jax.Array:
    """Multiply the stream `x` by a matrix.

    Args:
      product: for `einsum`; the order of the operands counts. The learner's begin with the
        stream, the sampler's with the matrix, outputs first.
      dtype: of the result; None takes that of the operands.
    """
    if isinstance(matrix, Adapted):
        into_rank, out_of_rank = adapter_products(product)
        low = multiply(into_rank, x, matrix.a)
        change = _cheap_product(out_of_rank, low, matrix.b, dtype)
        return multiply(product, x, matrix.base, dtype) + matrix.scale * change
    if begins_with_stream(product):
        return _learner_product(product, x, matrix, dtype)
    assert not isinstance(matrix, Nf4), "the sampler stores no such matrix"
    # Summed in float32 also where the result is narrower: XLA's CPU code widens the operands of a
    # product with a bfloat16 result, all weights among them, and takes twice as long. It takes
    # narrow matrices only as they lie here, outputs first: "df,drt->frt" fails when it runs.
    operands = unscaled(matrix, x), x
    wide = jnp.einsum(product, *operands, preferred_element_type=jnp.float32)
    return scaled(wide, matrix).astype(dtype or x.dtype)


def adapter_products(product: str) -> tuple[str, str]:
    """Cut a product in two: into the rank and out of it, in the same order of operands.

    Example:
      >>> adapter_products("rtd,dnh->rtnh")
      ('rtd,dl->rtl', 'rtl,lnh->rtnh')
      >>> adapter_products("nhd,drt->nhrt")
      ('ld,drt->lrt', 'nhl,lrt->nhrt')
    """
    operands, result = product.split("->")
    first, second = operands.split(",")
    if begins_with_stream(product):
        inputs, outputs = _inputs_outputs(second, result)
        low = _without(first, inputs) + RANK
        return f"{first},{inputs}{RANK}->{low}", f"{low},{RANK}{outputs}->{result}"
    inputs, outputs = _inputs_outputs(first, result)
    low = RANK + _without(second, inputs)
    return f"{RANK}{inputs},{second}->{low}", f"{outputs}{RANK},{low}->{result}"


def begins_with_stream(product: str) -> bool:
    """Whether it is the learner's order: the stream first, and the matrix inputs first."""
    return STREAM in product.split(",")[0]


def _inputs_outputs(letters: str, result: str) -> tuple[str, str]:
    inputs = _without(letters, result)
    return inputs, _without(letters, inputs)


def _without(letters: str, others: str) -> str:
    return "".join(letter for letter in letters if letter not in others)


def _cheap_product(
    product: str, low: jax.Array, b: jax.Array, dtype: DTypeLike | None
) -> jax.Array:
    """Multiply from the rank to the outputs, without its result being kept for a backward pass.

    `remat` keeps products without batch axes, and so the base's beside this one, of equal size;
    the backward pass needs only their sum, and this one costs little to compute again.
    """
    operands, result = product.split("->")
    first, second = operands.split(",")
    batched = f"z{first},z{second}->z{result}"
    pair = (low[None], b[None]) if begins_with_stream(product) else (b[None], low[None])
    return jnp.einsum(batched, *pair, preferred_element_type=dtype)[0]


def _learner_product(
    product: str, x: jax.Array, matrix: Frozen, dtype: DTypeLike | None
) -> jax.Array:
    def multiplied(x: jax.Array, matrix: jax.Array) -> jax.Array:
        inputs = len(product.split(",")[0]) - len(TOKENS)
        tokens, outputs = x.shape[: len(TOKENS)], matrix.shape[inputs:]
        depth = math.prod(matrix.shape[:inputs])
        two_axes = x.reshape(*tokens, depth), matrix.reshape(depth, math.prod(outputs))
        return _product_of_tokens(*two_axes, dtype or x.dtype).reshape(*tokens, *outputs)

    return with_plain(multiplied, x, matrix)


def _product_of_tokens(x: jax.Array, matrix: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Multiply [R, T, d] by [d, f]: [R, T, f]."""
    if x.dtype.itemsize < 4:
        narrow = summed_in_float32(x, matrix).astype(dtype)
        # For `remat`, which else would keep the sum, twice as large.
        named: jax.Array = checkpoint_name(narrow, NARROW_PRODUCT)  # type: ignore[no-untyped-call]
        return named
    # Two plain matrices: of more axes, XLA's CPU products transpose operands in the backward pass,
    # which took twice as long.
    *tokens, depth = x.shape
    flat = x.reshape(math.prod(tokens), depth)
    return jnp.matmul(flat, matrix, preferred_element_type=dtype).reshape(*tokens, -1)


def with_plain(
    multiplied: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    matrix: Frozen,
    *,
    widen: Callable[[Frozen, DTypeLike], jax.Array] = plain,
) -> jax.Array:
    """Multiply by a matrix that may be stored in fewer bits.

    Args:
      multiplied: the product, with plain floats of the stream's type.
      widen: makes these of the matrix.
    """
    if not isinstance(matrix, Quantized | Nf4) and matrix.dtype == x.dtype:
        return multiplied(x, matrix)

    def widened(x: jax.Array, matrix: Frozen) -> jax.Array:
        return multiplied(x, widen(matrix, x.dtype))

    # The backward pass widens it again: else a wide copy of every layer would wait for it.
    result: jax.Array = jax.checkpoint(widened)(x, matrix)
    return result
