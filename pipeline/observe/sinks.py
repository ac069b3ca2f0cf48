"""Where records of numbers go. A sink writes whole records or, if the process dies, none.

JSON has no NaN and no infinity: both are written as null, so that every reader can parse.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Scalar = float | int | str
Record = Mapping[str, Scalar]


class Sink(Protocol):
    """Takes one record after the other."""

    def write(self, record: Record) -> None:
        """Write one record; it is in the hands of the operating system on return."""
        ...

    def close(self) -> None:
        """Release what the sink holds; nothing is written afterwards."""
        ...


class JsonlSink:
    """Appends each record to a file as one line of JSON.

    A line is given to the operating system in one piece, so a run that is killed leaves whole
    lines; only of a last one longer than a page of memory the system may have taken a part.
    """

    def __init__(self, path: Path):
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line; values may be nested, and NumPy scalars and arrays.

        Raises:
          OSError: if the line can't be written, for example on a full disk; the file then
            ends with the line before.
        """
        # UTF-8 has no lone surrogates; a backslash and their number is how JSON escapes them.
        line = memoryview((to_json(record) + "\n").encode("utf-8", "backslashreplace"))
        end = os.fstat(self._file.fileno()).st_size
        try:
            while line:  # a raw write may be short, for example on a disk that is almost full
                line = line[self._file.write(line) :]
        except OSError as error:
            with suppress(OSError):  # the first error is the one to tell
                os.ftruncate(self._file.fileno(), end)
            error.filename = str(self._path)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as strict JSON: NaN and infinities become null.

    Example:
      >>> to_json({"loss": float("nan"), "lag": [1, 2]})
      '{"loss": null, "lag": [1, 2]}'
    """
    try:  # almost always plain already, and this is written for every trajectory
        return json.dumps(value, allow_nan=False, ensure_ascii=False, indent=indent)
    except (TypeError, ValueError):
        return json.dumps(_plain(value), allow_nan=False, ensure_ascii=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
