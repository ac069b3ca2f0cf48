"""Carries out moves of pages, in their order, by compiled programs of fixed size."""

from collections.abc import Iterable

import numpy as np

from ..types import Int32s
from .config import SamplerConfig
from .moves import Duplicate, Extract, Move
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
        numbers = _of_shard(move.shard, move.pages, programs.shards, config.pages_per_request)
        if isinstance(move, Extract):
            move.copy.data = programs.extract(state, numbers, move.shard)
        else:
            state = programs.insert(state, numbers, move.copy.data)
    return _duplicate(pairs, state, programs, config)


def _duplicate(
    pairs: list[Duplicate], state: SamplerState, programs: Programs, config: SamplerConfig
) -> SamplerState:
    if not pairs:
        return state
    shards, count = programs.shards, config.rows // programs.shards
    sources, targets = np.full((2, config.rows), BIN, np.int32)
    for shard in range(shards):
        mine = [pair for pair in pairs if pair.shard == shard]
        sources += _of_shard(shard, [pair.source for pair in mine], shards, count)
        targets += _of_shard(shard, [pair.target for pair in mine], shards, count)
    return programs.duplicate(state, sources, targets)


def _of_shard(shard: int, numbers: list[int], shards: int, count: int) -> Int32s:
    """Page numbers for a program of all shards: `count` each, the bin where there are none."""
    padded = np.full((shards, count), BIN, np.int32)
    padded[shard, : len(numbers)] = numbers
    return padded.reshape(-1)
