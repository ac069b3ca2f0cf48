"""Reads the header of a GGUF file: what it says of itself, and where its tensors lie.

Invariant: the file is read from its start to the header's end, so a model of any size takes a
moment. All numbers are little-endian.

Reference: the GGUF format's description in the repository ggml-org/ggml, docs/gguf.md.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .errors import ConfigError

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 32  # bytes of a text, entries of an array: more is a broken file
_MOST_AXES = 8
_ALIGNMENT = 32  # of the tensors' data, where the file doesn't say


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of a GGUF file.

    Attributes:
      shape: in elements, the axis that lies together in the file last.
      kind: number of its type, as in `gguf.GGMLQuantizationType`.
      start: in bytes from the start of the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself.

    Attributes:
      fields: its key-value pairs; arrays are lists.
      tensors: by name.
    """

    fields: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf_header(path: str | Path) -> GgufHeader:
    """Read the header.

    Raises:
      ConfigError: where the file is no GGUF file of version 2 or 3, or ends early.
    """
    with Path(path).open("rb") as file:
        try:
            return _read(_Reader(file))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(
                f"{path} is not a whole GGUF file of version 2 or 3: {error}; get it again"
            ) from None


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def place(self) -> int:
        return self._file.tell()

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        layout = struct.Struct(f"<{count}{code}")
        return layout.unpack(self._file.read(layout.size))

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def length(self) -> int:
        length: int = self.number("Q")
        if length > _LONGEST:
            raise ValueError(f"a length of {length}")
        return length

    def text(self) -> str:
        length = self.length()
        data = self._file.read(length)
        if len(data) != length:
            raise ValueError("it ends within a text")
        return data.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        return self.number(_code(kind))

    def _array(self) -> list[Any]:
        kind, length = self.number("I"), self.length()
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(length)]
        return list(self.numbers(_code(kind), length))


def _read(reader: _Reader) -> GgufHeader:
    magic, version = reader.numbers("I", 2)
    if magic != int.from_bytes(b"GGUF", "little") or version not in (2, 3):
        raise ValueError(f"it starts with {magic:#x}, version {version}")
    num_tensors, num_pairs = reader.length(), reader.length()
    fields = {reader.text(): reader.value(reader.number("I")) for _ in range(num_pairs)}
    entries = [_tensor_entry(reader) for _ in range(num_tensors)]
    alignment = fields.get("general.alignment", _ALIGNMENT)
    start = math.ceil(reader.place() / alignment) * alignment
    tensors = {
        name: GgufTensor(shape, kind, start + offset) for name, shape, kind, offset in entries
    }
    return GgufHeader(fields, tensors)


def _tensor_entry(reader: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name, num_axes = reader.text(), reader.number("I")
    if num_axes > _MOST_AXES:
        raise ValueError(f"a tensor of {num_axes} axes")
    sizes = reader.numbers("Q", num_axes)  # the axis that lies together comes first here
    return name, sizes[::-1], reader.number("I"), reader.number("Q")


def _code(kind: int) -> str:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of the unknown type {kind}")
    return _NUMBERS[kind]
