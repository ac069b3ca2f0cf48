"""The cache of one shard: which pages a request starts with, and what becomes of them.

A sequence is the block table of one trajectory: while its request has a row, and after its turn
until the next one, or until the pages are needed. Three things make a request begin with pages
that are filled already: it continues its own trajectory, others have the same prompt, or it
was parked. What is parked goes to the host and back, bit for bit, and so do the idle trajectories
of requests pinned to a version, as far as the host has room; prompts are computed alike by
everybody.
"""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from ..types import Int32s
from .moves import Duplicate, Extract, HostCopy, Insert, Move
from .pages import PagePool
from .prefixes import PrefixIndex
from .sequence import Sequence

Key = tuple[int, int, int]  # a trajectory's: its random key, and the version if it is pinned
HOST_SHARE = 8  # idle trajectories on the host have at most so many times the pages of the device
REMEMBERED = 65_536  # evicted trajectories of which it is still known that they were


class Memory:
    """The pages of one shard and what is in them."""

    def __init__(self, pages: int, page_tokens: int, *, shard: int = 0):
        """Args:
        pages: P, the bin included.
        shard: its number, for the moves.
        """
        self._shard = shard
        self._page_tokens = page_tokens
        self._index = PrefixIndex(page_tokens)
        self._pool = PagePool(pages, self._index)
        # How many positions prefill has written, or was told to write, in the pages of prompts.
        self._filled = [0] * pages
        self._idle: OrderedDict[Key, Sequence] = OrderedDict()
        self._evicted: OrderedDict[Key, None] = OrderedDict()
        self._moves: list[Move] = []

    @property
    def available(self) -> int:
        """Pages that no request with a row holds."""
        return self._pool.available

    @property
    def capacity(self) -> int:
        """Pages that requests can have."""
        return self._pool.capacity

    @property
    def idle(self) -> int:
        """Trajectories that wait for their next turn, or have ended."""
        return len(self._idle)

    def take_moves(self) -> list[Move]:
        """Hand over what the device must do before it goes on."""
        moves, self._moves = self._moves, []
        return moves

    def continues(self, key: Key, tokens: Int32s, version: int | None) -> Sequence | None:
        """The idle sequence that a request continues: it begins with all of its tokens."""
        idle = self._idle.get(key)
        if idle is None or len(idle.tokens) > len(tokens):
            return None
        if version is not None and idle.version != version:
            return None
        same = np.array_equal(idle.tokens, tokens[: len(idle.tokens)])
        return idle if same else None

    def knows(self, tokens: Int32s, version: int) -> int:
        """How many pages of a text's start are there, to compare shards."""
        return len(self._index.find(version, tokens))

    def resume(self, key: Key, positions: int, *, reserve: int) -> bool:
        """Give an idle sequence its pages for a row; false where memory is short of them."""
        idle = self._idle[key]
        if self._needed(idle, positions) + reserve > self.available:
            return False
        del self._idle[key]  # so that it isn't evicted to make room for itself
        idle.fresh = False
        return self.bring_back(idle, positions, reserve=reserve)

    def bring_back(self, sequence: Sequence, positions: int, *, reserve: int) -> bool:
        """Make a sequence busy, from the host if it is there; false where memory is short.

        Args:
          positions: for which it has pages then, at least.
          reserve: pages that must stay available after it.
        """
        if self._needed(sequence, positions) + reserve > self.available:
            return False
        if sequence.copy is None:
            self._pool.enter(sequence.pages)
        else:
            sequence.pages = self.take(sequence.copy.pages)
            self._moves.append(Insert(self._shard, sequence.copy, sequence.pages.copy()))
            sequence.copy = None
        sequence.pages += self.take(self._missing(sequence, positions))
        return True

    def take(self, count: int) -> list[int]:
        """Take pages for requests with a row; so many must be available."""
        while self._pool.at_hand < count:
            self._evict()
        return self._pool.take(count)

    def begin(
        self, tokens: Int32s, positions: int, version: int, *, pinned: bool, reserve: int
    ) -> Sequence | None:
        """Open a sequence for a text that prefill shall fill; None where memory is short.

        Args:
          tokens: what prefill has to write, i32[n], n >= 0.
          positions: for which it has pages then, n at least.
          reserve: pages that must stay available after it.
        """
        found = self._index.find(version, tokens)
        count = self._pages_for(len(tokens))
        partial = len(found) == count and len(tokens) % self._page_tokens > 0
        new = self._pages_for(positions) - len(found) + partial
        if new + self._pool.unused(found) + reserve > self.available:
            return None
        self._pool.hold(found)
        taken = self.take(new)
        spare = taken.pop() if partial else None
        pages = found + taken
        for page in taken:
            self._filled[page] = 0
        self._pool.share(pages[len(found) : count])
        self._index.add(version, tokens, pages[:count])
        return Sequence(version, pinned, pages, spare=spare)

    def advance(self, sequence: Sequence, to_fill: int) -> int:
        """Count what is filled, also by others who share the pages; return `valid`.

        Args:
          to_fill: positions that are wanted.
        """
        while sequence.fresh and sequence.valid < to_fill:
            slot, offset = divmod(sequence.valid, self._page_tokens)
            filled = self._filled[sequence.pages[slot]]
            if filled <= offset:
                break
            sequence.valid = min(slot * self._page_tokens + filled, to_fill)
        return sequence.valid

    def mark(self, sequence: Sequence, end: int, version: int) -> None:
        """Note that prefill fills the positions up to `end` before anything reads them."""
        if sequence.fresh:
            size = self._page_tokens
            for slot in range(sequence.valid // size, self._pages_for(end)):
                page, filled = sequence.pages[slot], min(end - slot * size, size)
                self._filled[page] = max(self._filled[page], filled)
        sequence.write(end, version)

    def own_page(self, sequence: Sequence) -> None:
        """Let a sequence write where its prompt ends: if others share that page, into a copy."""
        if sequence.spare is None:
            return
        slot, page = sequence.valid // self._page_tokens, sequence.spare
        source, sequence.pages[slot], sequence.spare = sequence.pages[slot], page, None
        self._moves.append(Duplicate(self._shard, source, page))
        self._pool.leave([source])
        self._pool.drop([source])

    def close(self, sequence: Sequence) -> None:
        """Let go of the pages of a request with a row."""
        self._pool.leave(sequence.held)
        self._pool.drop(sequence.held)

    def keep(self, key: Key, sequence: Sequence, tokens: Int32s) -> None:
        """Keep the sequence of a request that ended, for the next turn.

        Args:
          tokens: of the whole trajectory so far; the last one isn't in the cache.
        """
        sequence.tokens, sequence.valid = tokens, len(tokens) - 1
        count = self._pages_for(sequence.valid)
        self._pool.leave(sequence.pages)
        self._pool.drop(sequence.pages[count:])
        del sequence.pages[count:]
        self.discard(key)
        self._idle[key] = sequence

    def park(self, sequence: Sequence) -> None:
        """Move the pages of a request with a row to the host."""
        count = self._pages_for(sequence.valid)
        self._extract(sequence, sequence.pages[:count])
        self.close(sequence)
        sequence.pages, sequence.spare, sequence.fresh = [], None, False

    def forget(self, version: int) -> None:
        """Let go of everything that only requests pinned to a version could use."""
        for page in self._index.of_version(version):
            self._index.forget(page)
            self._pool.settle(page)
        self._discard_all(
            key for key, idle in self._idle.items() if idle.pinned and idle.version == version
        )

    def forget_idle(self) -> None:
        """Let go of the idle sequences of requests that name no version."""
        self._discard_all(key for key, idle in self._idle.items() if not idle.pinned)

    def lost(self, key: Key) -> bool:
        """Whether the trajectory's pages were evicted since its last turn; forgets it."""
        was_evicted = key in self._evicted
        self._evicted.pop(key, None)
        return was_evicted

    def _needed(self, sequence: Sequence, positions: int) -> int:
        """Pages that become busy if the sequence gets a row."""
        own = self._pool.unused(sequence.pages) if sequence.copy is None else sequence.num_pages
        return own + self._missing(sequence, positions)

    def _missing(self, sequence: Sequence, positions: int) -> int:
        return max(0, self._pages_for(positions) - sequence.num_pages)

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self._page_tokens)

    def _evict(self) -> None:
        """Make room: the trajectory that is idle longest gives up its pages."""
        key = next(key for key, idle in self._idle.items() if idle.copy is None)
        idle = self._idle[key]
        if idle.pinned:
            self._extract(idle, idle.pages)
            self._pool.drop(idle.pages)
            idle.pages = []
            self._limit_host()
        else:
            self._lose(key)

    def _lose(self, key: Key) -> None:
        """Forget an idle trajectory, but not that it was here."""
        self.discard(key)
        self._evicted[key] = None
        if len(self._evicted) > REMEMBERED:
            self._evicted.popitem(last=False)

    def _limit_host(self) -> None:
        """Forget the trajectories that are on the host longest, beyond what may be there."""
        copies = [(key, idle.copy) for key, idle in self._idle.items() if idle.copy is not None]
        surplus = sum(copy.pages for _, copy in copies) - HOST_SHARE * self.capacity
        for key, copy in copies:
            if surplus <= 0:
                return
            surplus -= copy.pages
            self._lose(key)

    def _extract(self, sequence: Sequence, pages: list[int]) -> None:
        sequence.copy = HostCopy(len(pages))
        self._moves.append(Extract(self._shard, pages, sequence.copy))

    def discard(self, key: Key) -> None:
        """Forget an idle trajectory, if there is one."""
        idle = self._idle.pop(key, None)
        if idle is not None:
            self._pool.drop(idle.pages)

    def _discard_all(self, keys: Iterable[Key]) -> None:
        for key in list(keys):
            self.discard(key)
