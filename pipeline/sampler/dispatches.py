"""What the scheduler plans, for the engine to carry out."""

from dataclasses import dataclass

from .rows import DecodeInput, PrefillChunk
from .turns import Int64s


@dataclass(frozen=True, eq=False)
class PrefillDispatch:
    """A planned prefill dispatch, and the window that it needs."""

    chunk: PrefillChunk
    window: int


@dataclass(frozen=True, eq=False)
class DecodeDispatch:
    """A planned decode dispatch.

    Attributes:
      tenures: i64[S], of the rows when it was planned; another one's tokens are nobody's.
      version: the policy version of all tokens.
      window: positions that it may touch in any served row, rounded up to a compiled window.
    """

    inputs: DecodeInput
    tenures: Int64s
    version: int
    window: int
