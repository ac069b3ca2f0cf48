"""Parameters to safetensors files, bit for bit; the host holds one file's tensors at a time."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from ..parameters import Params
from .convert import stack_indices, weight_at
from .layouts import Entry
from .safetensors_files import INDEX_FILE, SINGLE_FILE

MAX_FILE_BYTES = 5 * 10**9
METADATA = {"format": "pt"}  # Transformers asks for it


class _Tensor(NamedTuple):
    """One tensor of the file: of the weight that `entry` names, the part at `indices`."""

    entry: Entry
    indices: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.entry.tensor_name(self.indices)

    def fetch(self, params: Params, dtype: DTypeLike | None) -> np.ndarray:
        part = jax.device_get(weight_at(params, self.entry.path)[self.indices])
        return np.ascontiguousarray(self.entry.layout.to_file(part), dtype)

    def num_bytes(self, params: Params, dtype: DTypeLike | None) -> int:
        weight = weight_at(params, self.entry.path)
        itemsize = np.dtype(weight.dtype if dtype is None else dtype).itemsize
        count = np.prod(weight.shape[len(self.indices) :], dtype=np.int64)
        return int(count) * itemsize


def save_params(
    params: Params,
    entries: Iterable[Entry],
    folder: Path,
    *,
    dtype: DTypeLike | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write the tensors of parameters: one file, or several with an index where it gets large.

    Args:
      params: as `parameters.init` gives them; all their parts are on devices of this process.
      folder: an existing one, without weights.
      dtype: in the files; None keeps each weight's own, so that nothing is rounded.
      max_file_bytes: of one file; a tensor that is larger has a file of its own.
    """
    tensors = [
        _Tensor(entry, indices)
        for entry in entries
        for indices in stack_indices(entry, weight_at(params, entry.path).shape)
    ]
    sizes = [tensor.num_bytes(params, dtype) for tensor in tensors]
    files = _file_names(_cuts(sizes, max_file_bytes))
    for file in dict.fromkeys(files):
        group = [tensor for tensor, its in zip(tensors, files, strict=True) if its == file]
        arrays = {tensor.name: tensor.fetch(params, dtype) for tensor in group}
        save_file(arrays, folder / file, METADATA)
    if len(set(files)) > 1:
        index = {tensor.name: file for tensor, file in zip(tensors, files, strict=True)}
        _write_index(folder, index, sum(sizes))


def _cuts(sizes: Sequence[int], most: int) -> list[int]:
    """Number the files that tensors of these sizes go to, in order."""
    numbers, number, used = [], 0, 0
    for size in sizes:
        if used and used + size > most:
            number, used = number + 1, 0
        used += size
        numbers.append(number)
    return numbers


def _file_names(numbers: Sequence[int]) -> list[str]:
    count = numbers[-1] + 1
    if count == 1:
        return [SINGLE_FILE] * len(numbers)
    return [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in numbers]


def _write_index(folder: Path, index: dict[str, str], total_bytes: int) -> None:
    content = {"metadata": {"total_size": total_bytes}, "weight_map": index}
    (folder / INDEX_FILE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
