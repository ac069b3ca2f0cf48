"""Packing of sequences that must meet in one microbatch, such as the two answers of a pair.

The members of a unit may lie in any rows of their microbatch; where they are is told. Places are
decided by the lengths alone. NumPy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..types import Int32s, TrainBatch
from .packing import PackItem, Places, lay_out, lengths_of

Unit = Sequence[PackItem]


def microbatches_for_units(units: int, rows: int) -> int:
    """Return a number of microbatches that always suffices for units of at most two sequences.

    Proof. A microbatch with two empty rows takes any unit, as every sequence fits into a row. So
    one that turned a unit away has at most one empty row, hence at least R - 1 sequences, hence at
    least floor(R / 2) units.

    Args:
      rows: R >= 2.

    Example:
      >>> microbatches_for_units(10, rows=5)
      5
    """
    return -(-units // (rows // 2))


def pack_together(
    units: Sequence[Unit], *, microbatches: int, rows: int, row_tokens: int
) -> tuple[TrainBatch, list[tuple[int, Int32s]]]:
    """Pack units whole: each into the first microbatch that has room, the longest units first.

    Args:
      units: of one or two sequences.
      microbatches: A. See `microbatches_for_units`.
      rows: R, at least 2.
      row_tokens: T.

    Returns:
      The batch, and for each unit its microbatch and where its sequences begin in it: indexes
      into the R * T tokens.

    Raises:
      ConfigError: for a sequence longer than a row.
      ValueError: where the units need more microbatches.
    """
    items = [item for unit in units for item in unit]
    lengths_of(items, row_tokens)
    opened: list[_Microbatch] = []
    found: list[list[_Spot]] = [[]] * len(units)
    for index in sorted(range(len(units)), key=lambda place: -_size(units[place])):
        found[index] = _place(units[index], opened, rows, row_tokens)
    if len(opened) > microbatches:
        raise ValueError(f"the units need {len(opened)} microbatches, there are {microbatches}")
    spots = [spot for unit in found for spot in unit]
    places = Places(
        row=np.array([spot.microbatch * rows + spot.row for spot in spots], np.int64),
        start=np.array([spot.start for spot in spots], np.int64),
        segment=np.array([spot.segment for spot in spots], np.int64),
    )
    shape = microbatches, rows, row_tokens
    batch = lay_out(items, places, shape=shape, used=len(opened))
    begins = [[spot.row * row_tokens + spot.start for spot in unit] for unit in found]
    return batch, [
        (unit[0].microbatch, np.array(begin, np.int32))
        for unit, begin in zip(found, begins, strict=True)
    ]


@dataclass(frozen=True)
class _Spot:
    """Where a sequence lies."""

    microbatch: int
    row: int
    start: int
    segment: int


@dataclass
class _Microbatch:
    """What is in each row so far: tokens and sequences."""

    tokens: list[int]
    sequences: list[int] = field(default_factory=list)

    def rows_for(self, lengths: Sequence[int], row_tokens: int) -> list[int] | None:
        """Find rows for sequences of these lengths, one after the other; None without room."""
        free = [row_tokens - used for used in self.tokens]
        taken = []
        for length in lengths:
            row = next((row for row, room in enumerate(free) if room >= length), None)
            if row is None:
                return None
            free[row] -= length
            taken.append(row)
        return taken


def _place(unit: Unit, opened: list[_Microbatch], rows: int, row_tokens: int) -> list[_Spot]:
    lengths = [len(item.tokens) for item in unit]
    for number, microbatch in enumerate(opened):
        taken = microbatch.rows_for(lengths, row_tokens)
        if taken is not None:
            return _fill(number, microbatch, taken, lengths)
    opened.append(_Microbatch([0] * rows, [0] * rows))
    taken = opened[-1].rows_for(lengths, row_tokens)
    assert taken is not None, "two empty rows take two sequences that fit"
    return _fill(len(opened) - 1, opened[-1], taken, lengths)


def _fill(
    number: int, microbatch: _Microbatch, taken: list[int], lengths: Sequence[int]
) -> list[_Spot]:
    spots = []
    for row, length in zip(taken, lengths, strict=True):
        microbatch.sequences[row] += 1
        spots.append(_Spot(number, row, microbatch.tokens[row], microbatch.sequences[row]))
        microbatch.tokens[row] += length
    return spots


def _size(unit: Unit) -> int:
    return sum(len(item.tokens) for item in unit)
