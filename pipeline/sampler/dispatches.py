"""What the scheduler plans, for the engine to carry out."""

from dataclasses import dataclass

from .rows import DecodeInput, PrefillChunk


@dataclass(frozen=True, eq=False)
class PrefillDispatch:
    """A planned prefill dispatch, and the window that it needs."""

    chunk: PrefillChunk
    window: int


@dataclass(frozen=True, eq=False)
class DecodeDispatch:
    """A planned decode dispatch; of a row with another tenure by then, its tokens are nobody's.

    Attributes:
      version: the policy version of all tokens.
      window: positions that it may touch in any served row, rounded up to a compiled window.
    """

    inputs: DecodeInput
    version: int
    window: int
