"""From the tensors of a file to parameters and back; the same numbers in another order.

Parameters have the structure of `parameters.init`, layers stacked.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import ModelConfig
from ..parameters import Params, declare
from .layouts import Entry, Shape


def params_from_tensors(
    tensors: Mapping[str, Any], entries: Iterable[Entry], config: ModelConfig, vocab_size: int
) -> Params:
    """Assemble the parameters from whole tensors, with the dtypes that these have.

    Args:
      tensors: name in the file → array.
      entries: of the model's family, one for each weight of `declare`.

    Returns:
      NumPy arrays in the structure of `init`.

    Raises:
      KeyError: for a tensor that isn't there; `checks` says it better beforehand.
    """
    declared = declare(config, vocab_size)
    params: Params = {}
    for entry in entries:
        shape = weight_at(declared, entry.path).shape
        put(params, entry.path, _stacked(tensors, entry, shape))
    return params


def tensors_from_params(params: Params, entries: Iterable[Entry]) -> dict[str, Any]:
    """Give the file's tensors of parameters; undoes `params_from_tensors`.

    Args:
      params: NumPy or JAX arrays, as `init` gives them.
    """
    return dict(
        itertools.chain.from_iterable(
            entry_tensors(entry, weight_at(params, entry.path)) for entry in entries
        )
    )


def entry_tensors(entry: Entry, weight: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of the file that hold one weight, in the order of their indices."""
    for indices in stack_indices(entry, weight.shape):
        yield entry.tensor_name(indices), entry.layout.to_file(weight[indices])


def stack_indices(entry: Entry, shape: Shape) -> Iterator[tuple[int, ...]]:
    """Yield the index of every tensor of the file in the weight's stack."""
    return itertools.product(*map(range, shape[: entry.stacked_axes]))


def file_shapes(entry: Entry, shape: Shape) -> dict[str, Shape]:
    """Give name → shape of the tensors of the file that hold a weight of the given shape."""
    one = entry.layout.file_shape(shape[entry.stacked_axes :])
    return {entry.tensor_name(indices): one for indices in stack_indices(entry, shape)}


def weight_at(tree: Params, path: Sequence[str]) -> Any:
    """Give the leaf at a path."""
    for name in path:
        tree = tree[name]
    return tree


def put(tree: Params, path: Sequence[str], leaf: Any) -> None:
    """Set the leaf at a path of a tree of dicts."""
    *parents, last = path
    for name in parents:
        tree = tree.setdefault(name, {})
    tree[last] = leaf


def _stacked(tensors: Mapping[str, Any], entry: Entry, shape: Shape) -> np.ndarray:
    one = shape[entry.stacked_axes :]
    parts = [
        entry.layout.to_ours(np.asarray(tensors[entry.tensor_name(indices)]), one)
        for indices in stack_indices(entry, shape)
    ]
    return np.stack(parts).reshape(shape)
