"""Carries out moves of pages, in their order, by compiled programs of fixed size."""

from collections.abc import Iterable

import jax
import numpy as np

from ..types import Int32s
from .config import SamplerConfig
from .moves import Duplicate, Extract, Move
from .pages import BIN
from .programs import Programs
from .state import SamplerState
from .transfer import PageData


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
            every = jax.device_get(programs.extract(state, numbers))
            move.copy.data = _part(every, move.shard, programs.shards)
        else:
            data = _for_all(move.copy.data, programs.shards)
            state = programs.insert(state, numbers, data)
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


def _part(every: PageData, shard: int, shards: int) -> PageData:
    """The contents that came from one shard."""

    def of_caches(pages: np.ndarray) -> np.ndarray:
        return np.split(pages, shards, axis=1)[shard].copy()

    def of_tokens(pages: np.ndarray) -> np.ndarray:
        return np.split(pages, shards)[shard].copy()

    caches = jax.tree.map(of_caches, every.caches)
    return PageData(caches, *jax.tree.map(of_tokens, (every.tokens, every.experts)))


def _for_all(data: PageData, shards: int) -> PageData:
    """The contents once for each shard; those of the others go to their bins."""

    def of_caches(pages: np.ndarray) -> np.ndarray:
        return np.concatenate([pages] * shards, axis=1)

    def of_tokens(pages: np.ndarray) -> np.ndarray:
        return np.concatenate([pages] * shards)

    caches = jax.tree.map(of_caches, data.caches)
    return PageData(caches, *jax.tree.map(of_tokens, (data.tokens, data.experts)))
