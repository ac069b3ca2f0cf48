"""The pages of the cache: who holds each, and which may be taken. Plain, deterministic.

A page is free, or held by sequences, or loose: nobody holds it, but the prefix index still
knows what is in it. A page is busy while a request with a row holds it; every other page can be
had. Page 0 is a bin for masked writes and belongs to nobody.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

BIN = 0  # where masked rows write


class Page:
    """One page of the cache.

    Attributes:
      number: its place in the pool.
      filled: how many of its positions prefill has written, or was told to write; what decode
        writes isn't counted.
      indexed: whether the prefix index knows it.
    """

    __slots__ = ("busy", "filled", "indexed", "number", "users")

    def __init__(self, number: int):
        self.number = number
        self.filled = 0
        self.indexed = False
        self.users = 0  # sequences that hold it
        self.busy = 0  # those among them that have a row


class PagePool:
    """All pages of one shard of the cache."""

    def __init__(self, pages: int, *, forget: Callable[[Page], None]):
        """Args:
        pages: P, the bin included.
        forget: called for a loose page that is taken, so that the index forgets it.
        """
        self.capacity = pages - 1
        self.busy = 0
        self._forget = forget
        self._free = list(range(pages - 1, BIN, -1))
        self._loose: OrderedDict[Page, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that no request with a row holds."""
        return self.capacity - self.busy

    @property
    def at_hand(self) -> int:
        """Pages that nobody holds, free or loose."""
        return len(self._free) + len(self._loose)

    def take(self) -> Page:
        """Take a page for a request with a row: a free one, or that which is loose longest.

        Raises:
          KeyError: where there is none.
        """
        if not self._free:
            page, _ = self._loose.popitem(last=False)
            self._forget(page)
            self._free.append(page.number)
        page = Page(self._free.pop())
        page.users = 1
        self.enter(page)
        return page

    def hold(self, page: Page) -> None:
        """Share a page with a request with a row."""
        if page.users == 0:
            del self._loose[page]
        page.users += 1
        self.enter(page)

    def enter(self, page: Page) -> None:
        """Note that a holder of the page has a row now."""
        self.busy += page.busy == 0
        page.busy += 1

    def leave(self, page: Page) -> None:
        """Note that a holder of the page, which goes on holding it, has no row any more."""
        page.busy -= 1
        self.busy -= page.busy == 0

    def drop(self, page: Page) -> None:
        """Let go of a page, as a holder without a row."""
        page.users -= 1
        if page.users == 0:
            self.settle(page)

    def settle(self, page: Page) -> None:
        """Free a page that nobody holds, or keep it loose while the index knows it."""
        if page.indexed:
            self._loose[page] = None
        else:
            self._loose.pop(page, None)
            self._free.append(page.number)

    def drop_all(self, pages: Iterable[Page]) -> None:
        """Let go of pages, as a holder without a row, the last first: prefixes stay longest."""
        for page in reversed(list(pages)):
            self.drop(page)
