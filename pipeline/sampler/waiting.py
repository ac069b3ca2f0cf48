"""Requests without a row, in the order of service; those that need a full shard stand apart.

So a look at who is next costs the same however many wait for a shard without a free row.
"""

import heapq
from collections.abc import Iterable, Iterator

from .occupant import Occupant, Rank, Ticket

STALE_ENTRIES = 64  # of requests that have left, beside those of the waiting
_ANYWHERE = -1  # the line of those of which no shard is known


class WaitingQueue:
    """Who waits for a row of which shard, smallest rank first."""

    def __init__(self, shards: int):
        self._waiting: dict[Ticket, Occupant] = {}
        self._line_of: dict[Ticket, int] = {}
        self._lines: dict[int, list[tuple[Rank, Ticket]]] = {
            line: [] for line in (_ANYWHERE, *range(shards))
        }

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Occupant]:
        return iter(self._waiting.values())

    def add(self, occupant: Occupant) -> None:
        """Let a request wait."""
        self._waiting[occupant.ticket] = occupant
        self._stand(occupant, _ANYWHERE)

    def bind(self, occupant: Occupant, shard: int) -> None:
        """Let a request that waits here wait until a row of this shard is free."""
        self._stand(occupant, shard)

    def remove(self, ticket: Ticket) -> Occupant | None:
        """Let a request leave; None where it doesn't wait."""
        self._line_of.pop(ticket, None)
        return self._waiting.pop(ticket, None)

    def first(self, shards: Iterable[int]) -> Occupant | None:
        """The smallest rank among those that wait for one of these shards, or for any."""
        heads = [self._head(line) for line in (_ANYWHERE, *shards)]
        entries = [head for head in heads if head is not None]
        return self._waiting[min(entries)[1]] if entries else None

    def _stand(self, occupant: Occupant, line: int) -> None:
        self._line_of[occupant.ticket] = line
        entries = self._lines[line]
        heapq.heappush(entries, (occupant.rank, occupant.ticket))
        if len(entries) > 2 * len(self._waiting) + STALE_ENTRIES:
            entries[:] = {entry for entry in entries if self._line_of.get(entry[1]) == line}
            heapq.heapify(entries)

    def _head(self, line: int) -> tuple[Rank, Ticket] | None:
        """The first in a line that still stands there; who doesn't is taken out."""
        entries = self._lines[line]
        while entries and self._line_of.get(entries[0][1]) != line:
            heapq.heappop(entries)
        return entries[0] if entries else None
