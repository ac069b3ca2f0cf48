"""Rows and pages of all shards: which of them a request gets.

A shard is a part of the rows with a part of the pages. A request stays where its trajectory's
pages are, and goes otherwise where most of its prompt is known.
"""

from ..types import Int32s
from .config import SamplerConfig
from .memory import Memory
from .moves import Move
from .occupant import Occupant


class Shards:
    """The memories of the shards and their free rows.

    Attributes:
      memories: one for each shard.
      lost: requests whose trajectory's pages had been evicted since its last turn.
    """

    def __init__(self, config: SamplerConfig, count: int):
        rows, pages = config.rows // count, config.num_pages(count)
        self._steps = config.decode_tokens
        self._recomputes = config.kv_on_publish == "recompute"
        self._rows = rows  # of each shard
        # What a row has reaches to the end of its last dispatch.
        self._most_growth = rows * -(-config.decode_tokens // config.page_tokens)
        self._free = [list(range(shard * rows, (shard + 1) * rows)) for shard in range(count)]
        self.memories = [Memory(pages, config.page_tokens, shard=shard) for shard in range(count)]
        self.lost = 0

    def __len__(self) -> int:
        return len(self.memories)

    @property
    def with_free_rows(self) -> set[int]:
        """The shards that have a free row."""
        return {shard for shard, rows in enumerate(self._free) if rows}

    @property
    def pages_free(self) -> float:
        """Share of the pages that no request with a row holds."""
        available = sum(memory.available for memory in self.memories)
        return available / sum(memory.capacity for memory in self.memories)

    def memory_of(self, occupant: Occupant) -> Memory:
        """The memory where a request's pages are."""
        return self.memories[occupant.shard]

    def take_moves(self) -> list[Move]:
        """Hand over what the device must do with pages, in order."""
        return [move for memory in self.memories for move in memory.take_moves()]

    def candidates(self, occupant: Occupant, version: int) -> list[int]:
        """The shards where the request may go, the best first."""
        if len(self) == 1:
            return [0]
        if occupant.sequence is not None:  # it was parked there
            return [occupant.shard]
        text, wanted = occupant.tokens, self._cached_version(occupant, version)
        order = []
        for shard, memory in enumerate(self.memories):
            if memory.continues(occupant.trajectory, text, wanted):
                return [shard]
            order.append((-memory.knows(text[:-1], version), -len(self._free[shard]), shard))
        return [shard for _, _, shard in sorted(order)]

    def place(self, occupant: Occupant, shard: int, version: int) -> bool:
        """Give a request a row, and pages up to the next dispatch's end; false if there are none.

        A page for each row stays available, two for each if the request was parked: it would
        be the first to be parked again.
        """
        occupant.shard = shard
        if not self._find_pages(occupant, version, rows=self._rows - len(self._free[shard])):
            return False
        occupant.row = self._free[shard].pop()
        return True

    def leave(self, occupant: Occupant) -> None:
        """Take the request's row back."""
        self._free[occupant.shard].append(occupant.row)
        occupant.row = -1

    @property
    def are_ample(self) -> bool:
        """Whether there are enough pages for the next dispatch, whatever rows it serves."""
        return all(memory.available >= self._most_growth for memory in self.memories)

    def are_short(self, growth: Int32s) -> bool:
        """Whether there are too few pages for rows that need so many more, i32[S]."""
        return any(
            count > memory.available
            for count, memory in zip(self._by_shard(growth), self.memories, strict=True)
        )

    def take(self, growth: Int32s) -> list[int]:
        """Take so many pages for each row, i32[S]; row by row, and they aren't short."""
        pages: list[int] = []
        for count, memory in zip(self._by_shard(growth), self.memories, strict=True):
            pages += memory.take(count)
        return pages

    def _by_shard(self, growth: Int32s) -> list[int]:
        counts: list[int] = growth.reshape(len(self), -1).sum(axis=1).tolist()
        return counts

    def _find_pages(self, occupant: Occupant, version: int, *, rows: int) -> bool:
        """Args:
        rows: of the shard that have a request.
        """
        positions, memory = occupant.positions_after(self._steps), self.memory_of(occupant)
        if occupant.sequence is not None:  # it was parked
            return memory.bring_back(occupant.sequence, positions, reserve=2 * rows)
        wanted = self._cached_version(occupant, version)
        idle = memory.continues(occupant.trajectory, occupant.tokens, wanted)
        if idle is not None:
            found = memory.resume(occupant.trajectory, positions, reserve=rows)
            occupant.sequence = idle if found else None
            return found
        text, pinned = occupant.tokens[:-1], occupant.request.version is not None
        occupant.sequence = memory.begin(text, positions, version, pinned=pinned, reserve=rows)
        if occupant.sequence is None:
            return False
        # Of whatever shard: it may have to go on in another one.
        self.lost += sum(other.lost(occupant.trajectory) for other in self.memories) > 0
        return True

    def keep(self, occupant: Occupant) -> None:
        """Keep the cache of a request that ended for its next turn, and no older one elsewhere."""
        here = self.memory_of(occupant)
        for memory in self.memories:
            if memory is not here:
                memory.discard(occupant.trajectory)
        here.keep(occupant.trajectory, occupant.cached, occupant.tokens)

    def _cached_version(self, occupant: Occupant, version: int) -> int | None:
        """The version that a cache must have to go on with; None for any."""
        return version if self._recomputes else occupant.request.version
