"""From rows to lessons: each is read and packed as a whole, and knows where the rows go on."""

from collections.abc import Iterator, Mapping
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


def lessons(
    recipe: OfflineRecipe, parts: OfflineParts, position: Mapping[str, Any] | None, *, done: int
) -> Iterator[Read]:
    """Read and pack the rows of one update after the other.

    Args:
      position: of the last lesson that was learnt; None: begin with the first row.
      done: updates that were taken.
    """
    stream = row_stream(recipe, parts)
    if position is not None:
        stream.restore(position)

    def read(step: int) -> Lesson:
        taken = parts.reader.take(stream.take(step_rows(recipe, parts, step)))
        packed = parts.pack(taken.examples)
        tokens = int(np.count_nonzero(packed[0].rows.segment_ids))
        counts = len(taken.examples), taken.skipped, tokens
        return Lesson(packed, *counts, stream.epochs, stream.state())

    for step in range(done, parts.steps):
        yield outcome.capture(read, step)
