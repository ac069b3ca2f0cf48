"""Parameters that aren't trained, stored in fewer bits: bfloat16, int8 or four bits.

Only the layers' matrices are rounded, and an embedding of which only rows are looked up. Norms,
biases and the output head stay float32: a narrower head would be widened as a whole for each
product. A matrix is widened where it is used, one layer at a time, so that no float32 copy of
the model exists.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from .nf4 import Nf4, dequantize_nf4, quantize_nf4
from .parameters import Params
from .quantize import Quantized, quantize_matrix

StoredBase = Literal["float32", "bfloat16", "int8", "nf4"]
Frozen = jax.Array | Quantized | Nf4

# How many axes of inputs each matrix of a layer begins with; those of outputs follow.
INPUT_AXES = {"query": 1, "key": 1, "value": 1, "output": 2, "gate": 1, "up": 1, "down": 1}
# A mixture's, one for each expert: [L, E, inputs, outputs].
EXPERTS = ("expert_gate", "expert_up", "expert_down")


def freeze(params: Params, stored: StoredBase) -> Params:
    """Round the learner's parameters to what they shall be stored as; pure.

    Args:
      params: as from `parameters.init`, layers stacked.

    Returns:
      The same tree; for "int8" and "nf4" each matrix of the layers is one record of stacked
      arrays, `Quantized` (outputs first, as the sampler has it) or `Nf4`, and the embedding is
      bfloat16 where it isn't the head as well.
    """
    if stored == "float32":
        return params
    untied = {"embedding": params["embedding"].astype(jnp.bfloat16)} if "head" in params else {}
    layers = {
        name: _each(name, partial(_round, name=name, stored=stored))(leaf)
        if name in INPUT_AXES or name in EXPERTS
        else leaf
        for name, leaf in params["layers"].items()
    }
    return params | untied | {"layers": layers}


def frozen_axes(base: Params, axes: Params) -> Params:
    """Give the logical axis names of every array of a frozen base, in its structure.

    The blocks of four-bit matrices are whole on each device of a mesh.

    Args:
      axes: of the parameters before `freeze`; see `parameters.logical_axes`.
    """
    layers = {
        name: _stored_axes(leaf, axes["layers"][name], 2 if name in EXPERTS else 1, name)
        for name, leaf in base["layers"].items()
    }
    return axes | {"layers": layers}


def thaw(base: Params) -> Params:
    """Widen frozen parameters to plain float32 arrays; the rounding stays in them."""
    others = {
        name: jnp.asarray(leaf, jnp.float32) for name, leaf in base.items() if name != "layers"
    }
    widen = partial(plain, dtype=jnp.float32)
    layers = {name: _each(name, widen)(leaf) for name, leaf in base["layers"].items()}
    return others | {"layers": layers}


def plain(matrix: Frozen, dtype: DTypeLike) -> jax.Array:
    """Give one matrix of a layer in floating point, inputs first.

    Args:
      matrix: of one layer; not a stack.
    """
    if isinstance(matrix, Nf4):
        return dequantize_nf4(matrix, dtype)
    if isinstance(matrix, Quantized):
        outputs = matrix.scales.ndim
        inputs = range(outputs, matrix.values.ndim)
        wide = matrix.values.astype(jnp.float32) * jnp.expand_dims(matrix.scales, tuple(inputs))
        turned: jax.Array = wide.transpose(*inputs, *range(outputs)).astype(dtype)
        return turned
    return matrix.astype(dtype)


def plain_experts(matrices: Frozen, dtype: DTypeLike) -> jax.Array:
    """Give the matrices of a layer's experts, [E, inputs, outputs], in floating point."""
    return jax.vmap(partial(plain, dtype=dtype))(matrices)


def stack_shape(matrix: Any) -> tuple[int, ...]:
    """Shape of a stack of matrices, [L, inputs..., outputs...], however it is stored."""
    widen = jax.vmap(partial(plain, dtype=jnp.float32))
    shape: tuple[int, ...] = jax.eval_shape(widen, matrix).shape
    return shape


def _stored_axes(matrix: Any, names: tuple[str, ...], stacked: int, name: str) -> Any:
    """Name the axes of a stack of matrices, however it is stored; `stacked` of them come first."""
    if isinstance(matrix, Nf4):
        return jax.tree.map(lambda _: (None, None), matrix)
    if not isinstance(matrix, Quantized):
        return names
    outputs = names[stacked + INPUT_AXES.get(name, 1) :]
    inputs = names[stacked : stacked + INPUT_AXES.get(name, 1)]
    stack = names[:stacked]
    return Quantized((*stack, *outputs, *inputs), (*stack, *outputs))


def _each(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Lift a function of one matrix to the stack of this name."""
    lifted = jax.vmap(change)
    return jax.vmap(lifted) if name in EXPERTS else lifted


def _round(matrix: jax.Array, *, name: str, stored: StoredBase) -> Any:
    if stored == "bfloat16":
        return matrix.astype(jnp.bfloat16)
    if stored == "nf4":
        return quantize_nf4(matrix)
    inputs = range(INPUT_AXES.get(name, 1))
    outputs = range(inputs.stop, matrix.ndim)
    return quantize_matrix(matrix.transpose(*outputs, *inputs), len(outputs))
