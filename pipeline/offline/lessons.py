"""From rows to lessons: each is read and packed as a whole, and knows where the rows go on."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import outcome

from .assemble import OfflineParts, Packed, row_stream, step_rows
from .config import OfflineRecipe


class Lesson(NamedTuple):
    """What one update learns from.

    Attributes:
      packed: the batch, and what a baseline is measured on.
      examples: rows of data in it.
      skipped: rows that were too long for it.
      tokens: all that the model reads, padding left out.
      epochs: passes over the rows so far.
      position: in the rows, behind those of this update.
    """

    packed: Packed
    examples: int
    skipped: int
    tokens: int
    epochs: float
    position: Mapping[str, Any]


Read = outcome.Maybe[Lesson]  # what went wrong may stand in the place of a lesson


class Lessons:
    """The lessons of a run, to be read one behind the other."""

    def __init__(
        self, recipe: OfflineRecipe, parts: OfflineParts, position: Mapping[str, Any] | None
    ) -> None:
        """Begin at a lesson's position, or with the first row."""
        self._recipe = recipe
        self._parts = parts
        self._stream = row_stream(recipe, parts)
        if position is not None:
            self._stream.restore(position)

    def read(self, step: int) -> Read:
        """Read the rows of an update, the next one, and pack them."""
        return outcome.capture(self._read, step)

    def _read(self, step: int) -> Lesson:
        stream, parts = self._stream, self._parts
        taken = parts.reader.take(stream.take(step_rows(self._recipe, parts, step)))
        packed = parts.pack(taken.examples)
        tokens = int(np.count_nonzero(packed[0].rows.segment_ids))
        counts = len(taken.examples), taken.skipped, tokens
        return Lesson(packed, *counts, stream.epochs, stream.state())
