"""Safetensors files: one, or several with an index; every tensor stands in exactly one of them.

A file is mapped only while a part of it is read, so that its pages don't count as the
process's memory for longer.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from ...errors import ConfigError
from .layouts import Shape, Slices

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")


class SafetensorsFiles:
    """The tensors of a folder's safetensors files.

    Args:
      folder: with `model.safetensors`, or an index and the files that it names.

    Raises:
      ConfigError: where there are no such files, one is damaged, a tensor stands in two of
        them, or not in the one that the index says.
    """

    def __init__(self, folder: Path) -> None:
        self.origin = f"the safetensors files of {folder}"
        self._files: dict[str, Path] = {}
        self.shapes: dict[str, Shape] = {}
        self.unreadable: dict[str, str] = {}
        index = _read_index(folder)
        files = sorted(set(index.values())) if index else [SINGLE_FILE]
        duplicates = [problem for file in files for problem in self._add(folder / file)]
        if duplicates:
            raise ConfigError(
                f"{self.origin} hold tensors twice:\n  "
                + "\n  ".join(duplicates)
                + "\nremove the files that belong to another save"
            )
        _check_index(index, self._files, folder)

    def read(self, names: Sequence[str], part: Slices) -> Iterator[np.ndarray]:
        """Yield the same part of each named tensor; each file is opened once, then closed."""
        with ExitStack() as stack:
            opened = {
                path: stack.enter_context(_open(path))
                for path in {self._files[name] for name in names}
            }
            for name in names:
                array: np.ndarray = opened[self._files[name]].get_slice(name)[part]
                yield array

    def _add(self, path: Path) -> Iterator[str]:
        """Note a file's tensors; yield a line for each that another file has, too."""
        with _open(path) as opened:
            names = opened.keys()
            for name in names:
                if name in self._files:
                    yield f"{name} is in {self._files[name].name} and {path.name}"
                self._files[name] = path
                tensor = opened.get_slice(name)
                self.shapes[name] = tuple(tensor.get_shape())
                if tensor.get_dtype() not in FLOATS:
                    self.unreadable[name] = tensor.get_dtype()


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"{path} can't be read as safetensors: {error}; get the file anew"
        ) from error


def _read_index(folder: Path) -> dict[str, str]:
    """Give tensor → file; empty where there is one file and no index."""
    path, single = folder / INDEX_FILE, folder / SINGLE_FILE
    if path.exists() and single.exists():
        raise ConfigError(
            f"{folder} has both {SINGLE_FILE} and {INDEX_FILE}; remove the one that belongs to "
            "another save"
        )
    if not path.exists():
        if not single.exists():
            raise ConfigError(
                f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; give the folder of a "
                "model that was saved as safetensors"
            )
        return {}
    try:
        index: dict[str, str] = json.loads(path.read_text())["weight_map"]
        _check_names(index, folder)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is no index of safetensors: {error}; get it anew") from error
    return index


def _check_names(index: dict[str, str], folder: Path) -> None:
    outside = [file for file in index.values() if Path(file).name != file]
    if outside:
        raise ConfigError(f"{folder / INDEX_FILE} names files outside of its folder: {outside}")


def _check_index(index: dict[str, str], files: dict[str, Path], folder: Path) -> None:
    absent = [
        f"{name} must be in {file}"
        for name, file in sorted(index.items())
        if name not in files or files[name].name != file
    ]
    if absent:
        raise ConfigError(
            f"the files of {folder} don't hold what {INDEX_FILE} says:\n  "
            + "\n  ".join(absent)
            + "\nget the files anew"
        )
