"""Parameters to safetensors files, bit for bit.

The host holds one weight and one file's tensors at a time.
"""

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import numpy as np
from jax.typing import DTypeLike
from safetensors import SafetensorError
from safetensors.numpy import save_file

from ....sharding.partition import host_view
from ..parameters import Params
from .convert import entry_tensors, file_shapes, weight_at
from .layouts import Entry
from .safetensors_files import INDEX_FILE, SINGLE_FILE

MAX_FILE_BYTES = 5 * 10**9
METADATA = {"format": "pt"}  # Transformers asks for it


def save_params(
    params: Params,
    entries: Sequence[Entry],
    folder: Path,
    *,
    dtype: DTypeLike | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write the tensors of parameters: one file, or several with an index where it gets large.

    Args:
      params: as `parameters.init` gives them. Where they lie on devices of several processes, the
        others must call `gather_params` meanwhile.
      folder: an existing one, without weights.
      dtype: in the files; None keeps each weight's own, so that nothing is rounded.
      max_file_bytes: of one file; a tensor that is larger has a file of its own.

    Raises:
      OSError: where a file can't be written, as on a full disk.
    """
    sizes = _sizes(params, entries, dtype)
    files = _file_names(_cuts(list(sizes.values()), max_file_bytes))
    located = zip(files, _tensors(params, entries, dtype), strict=True)
    for file, group in itertools.groupby(located, key=itemgetter(0)):
        _save_file(dict(tensor for _, tensor in group), folder / file)
    if files[0] != SINGLE_FILE:
        content = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": dict(zip(sizes, files, strict=True)),
        }
        (folder / INDEX_FILE).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def gather_params(params: Params, entries: Iterable[Entry]) -> None:
    """Take part in what `save_params` does in another process, and write nothing."""
    for entry in entries:
        host_view(weight_at(params, entry.path))


def _save_file(tensors: dict[str, np.ndarray], path: Path) -> None:
    try:
        save_file(tensors, path, METADATA)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _tensors(
    params: Params, entries: Iterable[Entry], dtype: DTypeLike | None
) -> Iterator[tuple[str, np.ndarray]]:
    for entry in entries:
        weight = host_view(weight_at(params, entry.path))
        for name, tensor in entry_tensors(entry, weight):
            yield name, np.ascontiguousarray(tensor, dtype)


def _sizes(params: Params, entries: Iterable[Entry], dtype: DTypeLike | None) -> dict[str, int]:
    """Give name → bytes of every tensor, in the order of `_tensors`."""
    sizes: dict[str, int] = {}
    for entry in entries:
        weight = weight_at(params, entry.path)
        itemsize = np.dtype(weight.dtype if dtype is None else dtype).itemsize
        shapes = file_shapes(entry, weight.shape)
        sizes |= {name: math.prod(shape) * itemsize for name, shape in shapes.items()}
    return sizes


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
