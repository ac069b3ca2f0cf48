"""Files of rows, read by number: JSONL, Parquet and array_record, as Grain's sources.

Invariant: any row is found at once, so an order is a permutation of numbers, and a position in it
is one number. JSONL and array_record files stay on disk.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import ConfigError, reason
from .rows import Row

FORMATS = (".jsonl", ".parquet", ".array_record")
_BLOCK_BYTES = 2**24
_NEWLINE = ord("\n")


class Source(Protocol):
    """Rows by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


def open_source(path: str | Path) -> Source:
    """Open a file of rows.

    Raises:
      ConfigError: where it can't be read, has no rows, or is of another kind.
    """
    path = Path(path)
    kinds: dict[str, Callable[[Path], Source]] = {
        ".jsonl": JsonlSource,
        ".parquet": ParquetSource,
        ".array_record": ArrayRecordSource,
    }
    if path.suffix not in kinds:
        raise ConfigError(f"{path}: a file of rows must end with one of {', '.join(FORMATS)}")
    try:
        with path.open("rb"):
            source: Source = kinds[path.suffix](path)
    except (OSError, ValueError, RuntimeError) as error:  # damaged files are one of these, too
        raise _unreadable(path, error) from error
    if len(source) == 0:
        raise ConfigError(f"{path}: no rows; give a file with at least one")
    return source


def sha256_of(path: str | Path) -> str:
    """Hash a file's content.

    Raises:
      ConfigError: where it can't be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path}: cannot read the rows: {reason(error)}; give another file")


class JsonlSource:
    """One JSON object a line; blank lines are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        empty = path.stat().st_size == 0
        self._bytes = np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
        starts = np.array([0, *_after_newlines(self._bytes)], np.int64)
        ends = np.array([*starts[1:], len(self._bytes)], np.int64)
        full = [
            line
            for line, (start, end) in enumerate(zip(starts, ends, strict=True))
            if end > start and self._bytes[start:end].tobytes().strip()
        ]
        self._lines = np.array(full, np.int64)
        self._starts, self._ends = starts[self._lines], ends[self._lines]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int, /) -> Row:
        where = f"{self._path}:{self._lines[index] + 1}"
        return Row(where, self._bytes[self._starts[index] : self._ends[index]].tobytes())


class ParquetSource:
    """The rows of a Parquet file, which is held in memory in its own form."""

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import parquet  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise ConfigError(
                f"{path}: Parquet needs pyarrow, which isn't installed; run: "
                "pip install 'headrace[parquet]'"
            ) from error
        self._path = path
        self._table = parquet.read_table(path)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int, /) -> Row:
        (table,) = self._table.slice(index, 1).to_pylist()
        return Row(f"{self._path}: row {index + 1}", _without_none(table))


class ArrayRecordSource:
    """One JSON object a record."""

    def __init__(self, path: Path) -> None:
        import grain  # noqa: PLC0415 - slow to import

        self._path = path
        self._records: Any = grain.sources.ArrayRecordDataSource(str(path))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int, /) -> Row:
        where = f"{self._path}: record {index + 1}"
        return Row(where, bytes(self._records[index]))


class Part:
    """Some rows of a source, in the given order."""

    def __init__(self, source: Source, indexes: Sequence[int]) -> None:
        self._source = source
        self._indexes = np.array(indexes, np.int64)

    def __len__(self) -> int:
        return len(self._indexes)

    def __getitem__(self, index: int, /) -> Row:
        return self._source[int(self._indexes[index])]


def split(source: Source, share: float, seed: int) -> tuple[Source, Source | None]:
    """Hold out a share of a source's rows, drawn by the seed: the rest, and what is held out.

    Raises:
      ConfigError: where too few rows are left on one side.
    """
    if share == 0:
        return source, None
    count = round(share * len(source))
    if not 0 < count < len(source):
        raise ConfigError(
            f"data.eval_share must leave rows on both sides, got {share} of {len(source)} rows, "
            f"which is {count}; set --data.eval-share"
        )
    order = np.random.default_rng(seed).permutation(len(source))
    return Part(source, np.sort(order[count:]).tolist()), Part(
        source, np.sort(order[:count]).tolist()
    )


def _after_newlines(content: Any) -> Iterator[int]:
    """Yield where lines begin but the first one, without a copy of a large file."""
    for start in range(0, len(content), _BLOCK_BYTES):
        block = content[start : start + _BLOCK_BYTES]
        yield from (start + 1 + np.flatnonzero(block == _NEWLINE)).tolist()


def _without_none(value: Any) -> Any:
    """Leave out what a table fills in: a column's structs all have the same keys there."""
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
