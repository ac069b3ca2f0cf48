"""What the scheduler plans, for the engine to carry out."""

from dataclasses import dataclass

from ..types import Int32s
from .rows import PrefillChunk, RowPlan, RowUpdate


@dataclass(frozen=True, eq=False)
class PrefillDispatch:
    """A planned prefill dispatch, and the window that it needs."""

    chunk: PrefillChunk
    window: int


@dataclass(frozen=True, eq=False)
class DecodeDispatch:
    """A planned decode dispatch; of a row with another tenure by then, its tokens are nobody's.

    Attributes:
      packed: the plan in one array.
      update: of the rows, before it; None for none. To be packed at once: see `RowNumbers.take`.
      version: the policy version of all tokens.
      window: positions that it may touch in any served row, rounded up to a compiled window.
    """

    plan: RowPlan
    packed: Int32s
    update: RowUpdate | None
    version: int
    window: int
