"""How a tensor of a file and a weight of ours hold the same numbers: an invertible order of axes.

No layout rounds or drops a number, and a block of ours lies within one block of the file, so a
device can read the part that it holds and little else.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """For each axis of the file's tensor, the axes of ours that it merges, slowest first.

    Attributes:
      axes: every axis of ours stands in it once.

    Example:
      A projection to heads, [H*h, D] in the file, is [D, H, h] here.

      >>> import numpy as np
      >>> layout = Layout(((1, 2), (0,)))
      >>> layout.file_shape((8, 2, 3))
      (6, 8)
      >>> ours = layout.to_ours(np.arange(48).reshape(6, 8), (8, 2, 3))
      >>> ours[:, 1, 0].tolist()  # the file's row 1 * 3 + 0
      [24, 25, 26, 27, 28, 29, 30, 31]
    """

    axes: tuple[tuple[int, ...], ...]

    def file_shape(self, shape: Shape) -> Shape:
        """Give the shape in the file of a weight of the given shape."""
        return tuple(math.prod(shape[axis] for axis in merged) for merged in self.axes)

    def to_ours(self, tensor: Any, shape: Shape) -> Any:
        """Turn the file's tensor into a weight of the given shape; NumPy or JAX."""
        order = self._order
        split = tensor.reshape([shape[axis] for axis in order])
        return split.transpose([order.index(axis) for axis in range(len(order))])

    def to_file(self, weight: Any) -> Any:
        """Turn a weight into the file's tensor; undoes `to_ours`."""
        return weight.transpose(self._order).reshape(self.file_shape(weight.shape))

    def file_slices(self, shape: Shape, block: Slices) -> Slices:
        """Give the smallest slices of the file's tensor that hold a block of a weight.

        Of merged axes only the slowest is cut; `cut_ours` cuts the rest.

        Args:
          shape: of the whole weight.
          block: a slice with step 1 for each of its axes.
        """
        ranges = [part.indices(size)[:2] for part, size in zip(block, shape, strict=True)]
        slices = []
        for merged in self.axes:
            start, stop = ranges[merged[0]]
            inner = math.prod(shape[axis] for axis in merged[1:])
            slices.append(slice(start * inner, stop * inner))
        return tuple(slices)

    def cut_ours(self, part: Any, shape: Shape, block: Slices) -> Any:
        """Turn what lies at `file_slices(shape, block)` into the block of ours."""
        slowest = {merged[0] for merged in self.axes}
        read = [slice(None) if axis in slowest else cut for axis, cut in enumerate(block)]
        sizes = tuple(
            len(range(*block[axis].indices(size))) if axis in slowest else size
            for axis, size in enumerate(shape)
        )
        return self.to_ours(part, sizes)[tuple(read)]

    @property
    def _order(self) -> tuple[int, ...]:
        return tuple(itertools.chain.from_iterable(self.axes))


# Ours on the right; what a matrix takes in comes first here and last in the file.
VECTOR = Layout(((0,),))  # [D]
TABLE = Layout(((0,), (1,)))  # [V, D]
MATRIX = Layout(((1,), (0,)))  # [D, F]
TO_HEADS = Layout(((1, 2), (0,)))  # [D, H, h]
FROM_HEADS = Layout(((2,), (0, 1)))  # [H, h, D]
HEADS = Layout(((0, 1),))  # [H, h], a bias


@dataclass(frozen=True)
class Entry:
    """Where one weight lies in a file.

    Attributes:
      path: of the weight in the parameters, as in `("layers", "query")`.
      name: of the tensor in the file. `{layer}` stands for the index on the weight's first
        axis, `{expert}` for the one on its next: the weight is a stack of the file's tensors.
      layout: of one such tensor.
    """

    path: tuple[str, ...]
    name: str
    layout: Layout

    @property
    def stacked_axes(self) -> int:
        """How many of the weight's first axes count tensors of the file."""
        return ("{layer}" in self.name) + ("{expert}" in self.name)

    def tensor_name(self, indices: tuple[int, ...] = ()) -> str:
        """Give the name of one tensor of the stack.

        Example:
          >>> Entry(("layers", "up"), "layers.{layer}.up.{expert}", MATRIX).tensor_name((3, 0))
          'layers.3.up.0'
        """
        fields = [field for field in ("layer", "expert") if f"{{{field}}}" in self.name]
        return self.name.format(**dict(zip(fields, indices, strict=True)))
