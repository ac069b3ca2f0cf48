"""What a file of weights must offer, and the check that it holds exactly a model's weights.

After `check_tensors` no tensor is missing, left over, or of another shape.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...errors import ConfigError
from ..parameters import Params
from .convert import file_shapes, weight_at
from .layouts import Entry, Shape, Slices

# Tables that old checkpoints keep, although they follow from the configuration.
DERIVED = ("rotary_emb.inv_freq",)


class Tensors(Protocol):
    """Named tensors, of which parts can be read."""

    @property
    def origin(self) -> str:
        """Where they lie, for messages."""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Name → shape."""
        ...

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Name → its type, of tensors that hold no floating-point numbers."""
        ...

    def read(self, names: Sequence[str], part: Slices) -> Iterator[np.ndarray]:
        """Yield one part of each named tensor, in order; an array is valid until the next."""
        ...


class ArrayTensors:
    """Tensors that are in memory already."""

    def __init__(self, arrays: Mapping[str, Any], origin: str = "the given tensors") -> None:
        self._arrays = arrays
        self.origin = origin
        self.shapes: Mapping[str, Shape] = {name: array.shape for name, array in arrays.items()}
        self.unreadable: Mapping[str, str] = {}

    def read(self, names: Sequence[str], part: Slices) -> Iterator[np.ndarray]:
        """Yield the same part of each named tensor."""
        for name in names:
            yield np.asarray(self._arrays[name][part])


def expected_shapes(entries: Iterable[Entry], declared: Params) -> dict[str, Shape]:
    """Give name → shape of all tensors of a model.

    Args:
      declared: from `parameters.declare`, or parameters.
    """
    shapes: dict[str, Shape] = {}
    for entry in entries:
        shapes |= file_shapes(entry, weight_at(declared, entry.path).shape)
    return shapes


def check_tensors(
    tensors: Tensors, expected: Mapping[str, Shape], tolerated: Iterable[str] = ()
) -> None:
    """Refuse a file that doesn't hold exactly the expected tensors.

    Args:
      expected: name → shape.
      tolerated: names of further tensors that may be there.

    Raises:
      ConfigError: with the names of all tensors that are missing, unused, of another shape, or
        of a type that isn't floating point.

    Example:
      >>> check_tensors(ArrayTensors({"a": np.zeros(2), "b": np.zeros(2)}), {"b": (3,), "c": (1,)})
      Traceback (most recent call last):
        ...
      headrace.pipeline.errors.ConfigError: the given tensors don't fit the model:
        missing: c
        unused: a
        wrong shape: b is [2], must be [3]
      check that the weights and config.json belong together
    """
    found = tensors.shapes
    unused = {name for name in found.keys() - expected.keys() if not name.endswith(DERIVED)}
    wrong = [
        f"{name} is {list(found[name])}, must be {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != shape
    ]
    types = tensors.unreadable
    problems = [
        *(f"missing: {name}" for name in sorted(expected.keys() - found.keys())),
        *(f"unused: {name}" for name in sorted(unused - set(tolerated))),
        *(f"wrong shape: {text}" for text in sorted(wrong)),
        *(
            f"wrong type: {name} is {types[name]}"
            for name in sorted(types.keys() & expected.keys())
        ),
    ]
    if problems:
        raise ConfigError(
            f"{tensors.origin} don't fit the model:\n  "
            + "\n  ".join(problems)
            + "\ncheck that the weights and config.json belong together"
        )
