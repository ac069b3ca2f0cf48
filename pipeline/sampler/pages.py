"""The pages of the cache: who holds each, and which may be taken. Plain, deterministic.

A page is free, or held by sequences, or loose: nobody holds it, but the prefix index still
knows what is in it. A page is busy while a request with a row holds it; every other page can be
had. Page 0 is a bin for masked writes and belongs to nobody.

Most pages have one holder from when they are taken until they are free again. Nothing is noted
for such a page, so many of them change hands at the cost of moving a list. Counted are those
that the index gives to others too.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .prefixes import PrefixIndex

BIN = 0  # where masked rows write


class PagePool:
    """All pages of one shard of the cache, by number."""

    def __init__(self, pages: int, index: PrefixIndex):
        """Args:
        pages: P, the bin included.
        index: it is told to forget a loose page that is taken.
        """
        self.capacity = pages - 1
        self.busy = 0
        self._index = index
        self._users: dict[int, int] = {}  # of counted pages: sequences that hold it
        self._busy: dict[int, int] = {}  # those among them that have a row
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

    def take(self, count: int) -> list[int]:
        """Take pages for one request with a row: free ones, then those that are loose longest.

        Raises:
          KeyError: where there are too few.
        """
        while len(self._free) < count:
            page, _ = self._loose.popitem(last=False)
            self._index.forget(page)
            self._release(page)
        rest = len(self._free) - count
        pages = self._free[rest:]
        del self._free[rest:]
        self.busy += count
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Count from now on who holds these pages; so far it is one request with a row."""
        for page in pages:
            self._users[page] = self._busy[page] = 1

    def hold(self, pages: Iterable[int]) -> None:
        """Hand counted pages to one more request with a row."""
        for page in pages:
            if self._users[page] == 0:
                del self._loose[page]
            self._users[page] += 1
        self.enter(pages)

    def unused(self, pages: Sequence[int]) -> int:
        """Count those that no request with a row holds; one that isn't counted has no such."""
        return len(pages) - sum(self._busy.get(page, 0) > 0 for page in pages)

    def enter(self, pages: Iterable[int]) -> None:
        """Note that a holder of the pages has a row now."""
        busy = self._busy
        for page in pages:
            others = busy.get(page, 0)
            self.busy += others == 0
            if page in busy:
                busy[page] = others + 1

    def leave(self, pages: Iterable[int]) -> None:
        """Note that a holder of the pages, which goes on holding them, has no row any more."""
        busy = self._busy
        for page in pages:
            others = busy.get(page, 1) - 1
            self.busy -= others == 0
            if page in busy:
                busy[page] = others

    def drop(self, pages: Sequence[int]) -> None:
        """Let go of pages, as a holder without a row, the last first: prefixes stay longest."""
        users = self._users
        self._free += [page for page in reversed(pages) if page not in users]
        for page in [page for page in reversed(pages) if page in users]:
            users[page] -= 1
            if users[page]:
                continue
            if page in self._index:
                self._loose[page] = None
            else:
                self._release(page)

    def settle(self, page: int) -> None:
        """Free a page that the index has forgotten, unless somebody holds it."""
        if self._users[page] == 0:
            del self._loose[page]
            self._release(page)

    def _release(self, page: int) -> None:
        """Free a counted page that nobody holds."""
        del self._users[page], self._busy[page]
        self._free.append(page)
