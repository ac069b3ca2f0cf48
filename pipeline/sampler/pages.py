"""The pages of the cache: who holds each, and which may be taken. Plain, deterministic.

A page is free, or held by sequences, or loose: nobody holds it, but the prefix index still
knows what is in it. A page is busy while a request with a row holds it; every other page can be
had. Page 0 is a bin for masked writes and belongs to nobody. No holder has a page twice.
"""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from ..types import Bools, Int32s

BIN = 0  # where masked rows write


class PagePool:
    """All pages of one shard of the cache, by number."""

    def __init__(self, known: Bools, *, forget: Callable[[int], None]):
        """Args:
        known: bool[P], the pages that the prefix index knows; the index changes it.
        forget: called for a loose page that is taken, so that the index forgets it.
        """
        pages = len(known)
        self.capacity = pages - 1
        self.busy = 0
        self._known = known
        self._forget = forget
        self._users = np.zeros(pages, np.int32)  # sequences that hold it
        self._busy = np.zeros(pages, np.int32)  # those among them that have a row
        self._free = list(range(pages - 1, BIN, -1))
        self._loose: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that no request with a row holds."""
        return self.capacity - self.busy

    @property
    def at_hand(self) -> int:
        """Pages that nobody holds, free or loose."""
        return len(self._free) + len(self._loose)

    def take(self, count: int) -> Int32s:
        """Take pages for a request with a row: free ones, then those that are loose longest.

        Raises:
          KeyError: where there are too few.
        """
        while len(self._free) < count:
            page, _ = self._loose.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        rest = len(self._free) - count
        pages = np.array(self._free[rest:], np.int32)
        del self._free[rest:]
        self._users[pages] = 1
        self.enter(pages)
        return pages

    def hold(self, pages: Int32s) -> None:
        """Share pages with a request with a row."""
        for page in pages[self._users[pages] == 0].tolist():
            del self._loose[page]
        self._users[pages] += 1
        self.enter(pages)

    def unused(self, pages: Int32s) -> int:
        """Count those that no request with a row holds."""
        return int(np.count_nonzero(self._busy[pages] == 0))

    def enter(self, pages: Int32s) -> None:
        """Note that a holder of the pages has a row now."""
        self.busy += self.unused(pages)
        self._busy[pages] += 1

    def leave(self, pages: Int32s) -> None:
        """Note that a holder of the pages, which goes on holding them, has no row any more."""
        self._busy[pages] -= 1
        self.busy -= self.unused(pages)

    def drop(self, pages: Int32s) -> None:
        """Let go of pages, as a holder without a row, the last first: prefixes stay longest."""
        self._users[pages] -= 1
        gone = pages[self._users[pages] == 0][::-1]
        known = self._known[gone]
        self._loose.update(dict.fromkeys(gone[known].tolist()))
        self._free += gone[~known].tolist()

    def settle(self, page: int) -> None:
        """Free a page that the index has forgotten, unless somebody holds it."""
        if self._users[page] == 0:
            del self._loose[page]
            self._free.append(page)
