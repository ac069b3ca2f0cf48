"""Records of per-row arrays as one array, and back: what a call costs, each array costs again.

To hand an array to a program takes the host some microseconds, and as many to take one back,
whatever its size; the records of the rows have twenty.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def pack(record: Any) -> Any:
    """Lay the arrays of a record side by side, each number bit for bit: i32[S, n].

    Args:
      record: a tree of arrays [S, ...] of four bytes a number, or of bool; all of NumPy, or all
        of JAX. That is what the result is, too.

    Example:
      >>> pack((np.array([1, 2], np.int32), np.array([[0.0, 1.0], [2.0, -0.0]], np.float32)))
      array([[          1,           0,  1065353216],
             [          2,  1073741824, -2147483648]], dtype=int32)
    """
    words = [_words(array) for array in jax.tree.leaves(record)]
    if isinstance(words[0], np.ndarray):
        return np.concatenate(words, axis=1)
    return jnp.concatenate(words, axis=1)


def unpack(packed: Any, like: Any) -> Any:
    """Undo `pack`.

    Args:
      packed: i32[S, n], of NumPy or JAX; in NumPy the arrays are views of it, but those of bool.
      like: a tree of what has the shapes and dtypes of the record's arrays; of another number of
        rows, if need be.

    Example:
      >>> record = np.array([0.5, 2.0], np.float32), np.array([True, False])
      >>> unpack(pack(record), like=record)
      (array([0.5, 2. ], dtype=float32), array([ True, False]))
    """
    arrays, structure = jax.tree.flatten(like)
    record, end = [], 0
    for array in arrays:
        first, end = end, end + math.prod(array.shape[1:])
        words = packed[:, first:end].reshape(len(packed), *array.shape[1:])
        record.append(words != 0 if array.dtype == np.bool_ else words.view(array.dtype))
    return jax.tree.unflatten(structure, record)


def _words(array: Any) -> Any:
    whole = array.astype(np.int32) if array.dtype == np.bool_ else array.view(np.int32)
    return whole.reshape(len(array), -1)
