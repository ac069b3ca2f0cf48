"""One batch of an offline update: packed rows, and where the judged answers begin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..groups.packing import PackItem, microbatches_needed, pack
from ..groups.together import microbatches_for_units, pack_together
from ..types import Bools, Int32s, TrainBatch

NOWHERE = -1


class OfflineBatch(NamedTuple):
    """What an update learns from; a pytree of arrays. A microbatches, R rows, T tokens, N units.

    Attributes:
      rows: the packed sequences; the loss is on tokens of the loss mask.
      chosen: i32[A, N], where the n-th unit's better answer begins among the R * T tokens of its
        microbatch; -1 for none. N is 0 where nothing is judged.
      rejected: i32[A, N], the same of the worse answer.
    """

    rows: TrainBatch
    chosen: Any
    rejected: Any


@dataclass(frozen=True)
class Judged:
    """One row of preference data, rendered: a pair of answers, or a single one with its label."""

    chosen: PackItem | None
    rejected: PackItem | None

    @property
    def items(self) -> list[PackItem]:
        """Its sequences, the better one first."""
        return [item for item in (self.chosen, self.rejected) if item is not None]


@dataclass(frozen=True)
class BatchShape:
    """The one shape that all batches of a run have.

    Attributes:
      units: the most rows of data in a batch, >= 1.
      rows: R; at least 2 for what is judged.
      row_tokens: T.
    """

    units: int
    rows: int
    row_tokens: int


def sequence(tokens: Int32s, loss_mask: Bools) -> PackItem:
    """Make one sequence of a batch of tokens, those of the mask with weight 1."""
    return PackItem(
        tokens=tokens,
        loss_mask=loss_mask,
        rollout_logprobs=np.zeros(tokens.shape, np.float32),
        advantages=loss_mask.astype(np.float32),
    )


def plain_batch(items: Sequence[PackItem], shape: BatchShape) -> OfflineBatch:
    """Pack conversations, at most `shape.units` of them."""
    needed = microbatches_needed(shape.units, shape.row_tokens, shape.rows, shape.row_tokens)
    rows = pack(items, microbatches=needed, rows=shape.rows, row_tokens=shape.row_tokens)
    nothing = np.zeros((needed, 0), np.int32)
    return OfflineBatch(rows, nothing, nothing)


def judged_batch(units: Sequence[Judged], shape: BatchShape) -> OfflineBatch:
    """Pack judged answers, at most `shape.units` rows of data, pairs within one microbatch."""
    needed = microbatches_for_units(shape.units, shape.rows)
    rows, places = pack_together(
        [unit.items for unit in units],
        microbatches=needed,
        rows=shape.rows,
        row_tokens=shape.row_tokens,
    )
    chosen = np.full((needed, shape.units), NOWHERE, np.int32)
    rejected = chosen.copy()
    for number, (unit, (microbatch, begins)) in enumerate(zip(units, places, strict=True)):
        if unit.chosen is not None:
            chosen[microbatch, number] = begins[0]
        if unit.rejected is not None:
            rejected[microbatch, number] = begins[-1]
    return OfflineBatch(rows, chosen, rejected)


def mismatched_rows(units: Sequence[Judged], shape: BatchShape) -> TrainBatch:
    """Pack each answer behind the prompt of the next one, to measure how far the policy has moved.

    A sequence that becomes too long is cut.
    """
    items = [item for unit in units for item in unit.items]
    swapped = [
        _spliced(prompt, answer, shape.row_tokens)
        for prompt, answer in zip(items[1:] + items[:1], items, strict=True)
    ]
    needed = microbatches_for_units(shape.units, shape.rows)  # enough for single ones, too
    return pack(swapped, microbatches=needed, rows=shape.rows, row_tokens=shape.row_tokens)


def _spliced(prompt: PackItem, answer: PackItem, longest: int) -> PackItem:
    before, behind = int(prompt.loss_mask.argmax()), int(answer.loss_mask.argmax())
    tokens = np.concatenate([prompt.tokens[:before], answer.tokens[behind:]])[:longest]
    mask = np.concatenate([prompt.loss_mask[:before], answer.loss_mask[behind:]])[:longest]
    return sequence(tokens, mask)
