"""First-fit-decreasing packing of sequences into rows of one fixed shape.

A row holds whole sequences, one after the other; none is cut, none is lost, and the places of
all are decided by the lengths alone. NumPy only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..types import NOT_RECORDED, Bools, Float32s, Int16s, Int32s, TrainBatch

Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PackItem:
    """One sequence of a batch; all arrays have the same length n >= 1.

    Attributes:
      tokens: i32[n].
      loss_mask: bool[n].
      rollout_logprobs: f32[n].
      advantages: f32[n]; for supervised training the tokens' loss weights.
      log_kept_mass: f32[n]; None stands for 0 everywhere.
      lags: i32[n], versions; None stands for 0 everywhere.
      experts: i16[n, L, k], of a mixture of experts; None lets the router choose everywhere.

    Raises:
      ValueError: for no tokens, or lengths that differ.
    """

    tokens: Int32s
    loss_mask: Bools
    rollout_logprobs: Float32s
    advantages: Float32s
    log_kept_mass: Float32s | None = None
    lags: Int32s | None = None
    experts: Int16s | None = None

    def __post_init__(self) -> None:
        arrays = {name: array for name, array in vars(self).items() if array is not None}
        lengths = tuple(len(array) for array in arrays.values())
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise ValueError(f"{', '.join(arrays)} must have one length >= 1, got {lengths}")


def microbatches_needed(max_items: int, max_tokens: int, rows: int, row_tokens: int) -> int:
    """Return a number of microbatches that always suffices for `pack`; no smaller one does.

    Proof. Let c = floor(row_tokens / max_tokens). When the last row was opened, for an item of
    s <= max_tokens tokens, each earlier row had less than s tokens free, hence more than
    row_tokens - max_tokens in use, hence more than row_tokens / max_tokens - 1 items: at least
    c. So r rows hold at least (r - 1) * c + 1 items, and r <= ceil(max_items / c). Items that
    all have max_tokens need as many.

    Args:
      max_items: sequences of one batch, >= 0.
      max_tokens: tokens of the longest sequence, >= 1.
      rows: R, rows of a microbatch, >= 1.
      row_tokens: T, tokens of a row.

    Raises:
      ConfigError: if a sequence of `max_tokens` does not fit into a row.

    Example:
      >>> microbatches_needed(max_items=480, max_tokens=25, rows=8, row_tokens=256)
      6
    """
    if row_tokens < max_tokens:
        raise ConfigError(_too_long(max_tokens, row_tokens))
    rows_needed = _ceil_div(max_items, row_tokens // max_tokens)
    return _ceil_div(rows_needed, rows)


def pack(
    items: Sequence[PackItem], *, microbatches: int, rows: int, row_tokens: int
) -> TrainBatch:
    """Pack sequences into `microbatches` x `rows` rows of `row_tokens` tokens.

    The microbatches in use come first, as few as first-fit-decreasing allows, and their
    numbers of filled rows differ by at most one. Padding is 0 everywhere, and `NOT_RECORDED` among
    experts, which a batch has if one of its sequences does.

    Args:
      items: the sequences, in any order, possibly none.
      microbatches: A. See `microbatches_needed`.
      rows: R.
      row_tokens: T.

    Raises:
      ConfigError: for a sequence longer than a row, or more sequences than the rows hold.

    Reference: Johnson 1973, Near-optimal bin packing algorithms (first-fit-decreasing).
    """
    lengths = lengths_of(items, row_tokens)
    placement = _first_fit_decreasing(lengths, row_tokens)
    used = _ceil_div(placement.bins, rows)
    if used > microbatches:
        raise ConfigError(
            f"{len(items)} sequences of {int(lengths.sum())} tokens need {used} microbatches of "
            f"{rows} rows of {row_tokens} tokens, there are {microbatches}; allow for "
            f"microbatches_needed({len(items)}, {int(lengths.max())}, {rows}, {row_tokens})"
        )
    # The fullest rows are first; dealing them out in turn loads the microbatches evenly.
    row = placement.bin % max(1, used) * rows + placement.bin // max(1, used)
    places = Places(row, placement.start, placement.segment)
    return lay_out(items, places, shape=(microbatches, rows, row_tokens), used=used)


@dataclass(frozen=True, eq=False)
class Places:
    """Where each of N sequences goes.

    Attributes:
      row: counted over all microbatches.
      start: its first token's place in the row.
      segment: its id, from 1.
    """

    row: Int64s
    start: Int64s
    segment: Int64s


def lengths_of(items: Sequence[PackItem], row_tokens: int) -> Int64s:
    """Return the lengths of the sequences.

    Raises:
      ConfigError: if one is longer than a row.
    """
    lengths = np.array([len(item.tokens) for item in items], np.int64)
    if len(items) and lengths.max() > row_tokens:
        raise ConfigError(_too_long(int(lengths.max()), row_tokens))
    return lengths


def lay_out(
    items: Sequence[PackItem], places: Places, *, shape: tuple[int, int, int], used: int
) -> TrainBatch:
    """Write sequences to their places in a batch, with 0 everywhere else.

    Args:
      shape: A, R, T.
      used: microbatches that hold something; the first ones.
    """
    lengths = np.array([len(item.tokens) for item in items], np.int64)
    layout = _Layout(
        flat=_ranges(places.row * shape[2] + places.start, lengths), lengths=lengths, shape=shape
    )
    return TrainBatch(
        tokens=layout.gather([item.tokens for item in items], np.int32),
        segment_ids=layout.fill(np.repeat(places.segment, lengths), np.int32),
        positions=layout.fill(_ranges(np.zeros_like(lengths), lengths), np.int32),
        loss_mask=layout.gather([item.loss_mask for item in items], np.bool_),
        rollout_logprobs=layout.gather([item.rollout_logprobs for item in items], np.float32),
        log_kept_mass=layout.gather(
            [_or_zeros(item.log_kept_mass, item) for item in items], np.float32
        ),
        lags=layout.gather([_or_zeros(item.lags, item) for item in items], np.int32),
        advantages=layout.gather([item.advantages for item in items], np.float32),
        microbatches=np.array(used, np.int32),
        experts=_experts(items, layout),
    )


@dataclass(frozen=True, eq=False)
class _Placement:
    """Where each of N sequences goes: its bin, first token in it, and segment id from 1."""

    bin: Int64s
    start: Int64s
    segment: Int64s
    bins: int


def _first_fit_decreasing(lengths: Int64s, capacity: int) -> _Placement:
    """Put each sequence, longest first, into the first bin with room; ties in their order.

    Sequences of one length go on filling the bin of the one before: earlier bins have no room.
    """
    bins, starts, segments = (np.zeros(len(lengths), np.int64) for _ in range(3))
    free = np.full(len(lengths), capacity, np.int64)  # one bin each always suffices
    bin_, room, count, last_length = 0, 0, [0] * len(lengths), 0
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        if length != last_length or room < length:
            bin_ = int(np.argmax(free >= length))
            room = int(free[bin_])
        bins[item], starts[item] = bin_, capacity - room
        count[bin_] += 1
        segments[item] = count[bin_]
        room -= length
        free[bin_] = room
        last_length = length
    return _Placement(bins, starts, segments, bins=sum(number > 0 for number in count))


@dataclass(frozen=True, eq=False)
class _Layout:
    """Writes all sequences, joined, to their places `flat` in an array of `shape`."""

    flat: Int64s
    lengths: Int64s
    shape: tuple[int, int, int]

    def gather(self, parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
        return self.fill(np.concatenate(parts) if parts else np.zeros(0), dtype)

    def fill(
        self, joined: NDArray[Any], dtype: type[np.generic], padding: int = 0
    ) -> NDArray[Any]:
        of_token = joined.shape[1:]
        array: NDArray[Any] = np.full((*self.shape, *of_token), padding, dtype)
        array.reshape(-1, *of_token)[self.flat] = joined
        return array


def _experts(items: Sequence[PackItem], layout: _Layout) -> NDArray[Any] | None:
    shapes = {item.experts.shape[1:] for item in items if item.experts is not None}
    if not shapes:
        return None
    (of_token,) = shapes
    joined = np.concatenate(
        [
            np.full((len(item.tokens), *of_token), NOT_RECORDED, np.int16)
            if item.experts is None
            else item.experts
            for item in items
        ]
    )
    return layout.fill(joined, np.int16, NOT_RECORDED)


def _or_zeros(array: NDArray[Any] | None, item: PackItem) -> NDArray[Any]:
    return np.zeros(len(item.tokens), np.float32) if array is None else array


def _ranges(starts: Int64s, lengths: Int64s) -> Int64s:
    """Join the ranges start, start + 1, … of the given lengths."""
    offsets: Int64s = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return offsets + np.arange(len(offsets))


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _too_long(tokens: int, row_tokens: int) -> str:
    return (
        f"a sequence of {tokens} tokens does not fit into a row of {row_tokens}; raise "
        "--learner.row-tokens or lower --rollout.max-tokens"
    )
