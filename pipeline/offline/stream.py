"""Rows in a shuffled, endless stream whose position is one number."""

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..prompts import endless
from .rows import Row
from .sources import Source


class RowStream:
    """Each row comes once an epoch; each epoch has its own order, decided by the seed."""

    def __init__(self, source: Source, *, seed: int, shuffle: bool = True) -> None:
        self._size = len(source)
        self._dataset = endless(source, seed=seed, shuffle=shuffle)
        self._identity = {"rows": self._size, "seed": seed, "shuffle": shuffle}
        self._cursor = 0

    @property
    def epochs(self) -> float:
        """How often the stream has passed over all rows."""
        return self._cursor / self._size

    def take(self, count: int) -> list[Row]:
        """Return the next rows and move on.

        Raises:
          BadRow: where one can't be read.
        """
        rows = [self._dataset[self._cursor + number] for number in range(count)]
        self._cursor += count
        return rows

    def state(self) -> dict[str, Any]:
        """Return the position, JSON-serialisable; `take` after `restore` continues from it."""
        return {"cursor": self._cursor, **self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position: exactly the same rows follow.

        Raises:
          ConfigError: if the rows, the seed or the order are not those of the saved stream.
        """
        for name, value in self._identity.items():
            if state[name] != value:
                raise ConfigError(
                    f"the saved position belongs to other rows: {name} was {state[name]}, is "
                    f"{value}; go on with the same data, --run.seed and --data.shuffle"
                )
        self._cursor = state["cursor"]
