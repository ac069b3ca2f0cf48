"""Which pieces of which texts one prefill dispatch works on."""

from typing import NamedTuple

from ..types import Int32s
from .config import SamplerConfig
from .memory import Memory
from .occupant import Occupant
from .rows import PrefillChunk, idle_chunk


class Lane(NamedTuple):
    """One lane of a prefill dispatch: a piece of a text, and the pages of the text."""

    first: int
    end: int
    tokens: Int32s
    pages: list[int]


def plan_lanes(
    occupant: Occupant, version: int, memory: Memory, *, most: int, size: int
) -> list[Lane]:
    """Plan as many lanes as the text needs, `most` at most; they count as filled from now on.

    A lane ends where its window of `size` positions does.
    """
    lanes, sequence, to_fill = list[Lane](), occupant.cached, occupant.to_fill
    while (first := memory.advance(sequence, to_fill)) < to_fill and len(lanes) < most:
        end = min((first // size + 1) * size, to_fill)
        # The page numbers of now: its last page may become another one when it decodes.
        lanes.append(Lane(first, end, occupant.tokens[first:end], sequence.pages.copy()))
        memory.mark(sequence, end, version)
    return lanes


def make_chunk(lanes: list[list[Lane]], window: int, config: SamplerConfig) -> PrefillChunk:
    """Make the operand of the program from the lanes of each shard."""
    chunk, size = idle_chunk(config, window), config.prefill_tokens
    for shard, some in enumerate(lanes):
        first_lane = shard * (config.prefill_lanes // len(lanes))
        for index, lane in enumerate(some, first_lane):
            start = lane.first - lane.first % size
            chunk.tokens[index, lane.first - start : lane.end - start] = lane.tokens
            chunk.starts[index] = start
            chunk.first[index], chunk.end[index] = lane.first, lane.end
            shown = lane.pages[: chunk.tables.shape[1]]
            chunk.tables[index, : len(shown)] = shown
    return chunk
