"""Carries out moves of pages, in their order, by compiled programs of fixed size."""

from collections.abc import Iterable

import jax
import numpy as np

from ..types import Int32s
from .config import SamplerConfig
from .moves import Duplicate, Extract, Insert, Move
from .pages import BIN
from .programs import Programs
from .state import SamplerState


def relocate(
    moves: Iterable[Move], state: SamplerState, programs: Programs, config: SamplerConfig
) -> SamplerState:
    """Do what the moves say; return the new state, as the old one is donated."""
    pairs: list[Duplicate] = []
    for move in moves:
        if isinstance(move, Duplicate):
            pairs.append(move)
            continue
        state = _duplicate(pairs, state, programs, config)
        pairs = []
        if isinstance(move, Extract):
            numbers = _padded(move.pages, config.pages_per_request)
            move.copy.data = jax.device_get(programs.extract(state, numbers))
        else:
            state = _insert(move, state, programs, config)
    return _duplicate(pairs, state, programs, config)


def _duplicate(
    pairs: list[Duplicate], state: SamplerState, programs: Programs, config: SamplerConfig
) -> SamplerState:
    if not pairs:
        return state
    sources = _padded([pair.source for pair in pairs], config.rows)
    targets = _padded([pair.target for pair in pairs], config.rows)
    return programs.duplicate(state, sources, targets)


def _insert(
    move: Insert, state: SamplerState, programs: Programs, config: SamplerConfig
) -> SamplerState:
    numbers = _padded(move.pages, config.pages_per_request)
    return programs.insert(state, numbers, move.copy.data)


def _padded(numbers: list[int], count: int) -> Int32s:
    """Fill up with the bin, so that every call has the program's shape."""
    return np.array(numbers + [BIN] * (count - len(numbers)), np.int32)
