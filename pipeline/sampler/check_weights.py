"""Refuses weights that the compiled programs can't take, before anything has changed."""

from typing import Any

import jax
import numpy as np

from ..models.parameters import Params


def check_weights(params: Params, expected: Any) -> None:
    """Refuse parameters of another structure, shape or dtype.

    Args:
      expected: shapes and dtypes of what the programs were compiled for.

    Raises:
      ValueError: with the first array that is missing, too many or of another kind.
    """
    found, wanted = _kinds(params), _kinds(expected)
    for name in [*wanted, *found]:
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"the weights to publish must have {wanted.get(name, 'nothing')} at {name!r}, got "
                f"{found.get(name, 'nothing')}; publish what sampler_params makes of the model "
                "that the sampler was compiled for"
            )
    made: object = jax.tree.structure(params)
    asked: object = jax.tree.structure(expected)
    if made != asked:
        raise ValueError(f"the weights to publish must be a tree {asked}, got {made}")


def _kinds(tree: Any) -> dict[str, str]:
    """What is at each place of a tree, such as float32[4, 8]."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _kind(leaf)
        for path, leaf in leaves
    }


def _kind(leaf: Any) -> str:
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"a {type(leaf).__name__}"
