"""Which pages hold the start of which text: chains of whole pages, one tree per policy version.

A page is in the index from the moment on that a request with a row means to fill it; how much
of it is filled says the page. Only what prefill computes from the first token on is here: it
depends on the tokens and the version alone, never on who asked for it.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..types import Int32s


class _Place(NamedTuple):
    """Where a page stands in the index: the serial of the page before it, and its tokens."""

    version: int
    parent: int
    tokens: bytes


class PrefixIndex:
    """Finds the pages that hold the start of a text."""

    def __init__(self, page_tokens: int):
        self._page_bytes = page_tokens * np.dtype(np.int32).itemsize
        self._pages: dict[_Place, int] = {}
        self._places: dict[int, tuple[_Place, int]] = {}  # with the page's own serial
        self._by_version: dict[int, set[int]] = {}
        self._serials = itertools.count(1)  # 0 stands before every first page

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: int) -> bool:
        return page in self._places

    def find(self, version: int, tokens: Int32s) -> list[int]:
        """The pages that hold a text from its start on, as far as the index knows them.

        The last page of the text may be a partial one; it is found for exactly these tokens.
        """
        found: list[int] = []
        parent = 0
        for piece in self._pieces(tokens):
            page = self._pages.get(_Place(version, parent, piece))
            if page is None:
                break
            found.append(page)
            parent = self._places[page][1]
        return found

    def add(self, version: int, tokens: Int32s, pages: list[int]) -> None:
        """Enter the pages of a text, of which the first ones may be known already."""
        parent = 0
        for piece, page in zip(self._pieces(tokens), pages, strict=True):
            if page not in self._places:
                place = _Place(version, parent, piece)
                self._pages[place] = page
                self._places[page] = place, next(self._serials)
                self._by_version.setdefault(version, set()).add(page)
            parent = self._places[page][1]

    def forget(self, page: int) -> None:
        """Take a page out; what stands after it is found no longer."""
        place, _ = self._places.pop(page)
        del self._pages[place]
        pages = self._by_version[place.version]
        pages.remove(page)
        if not pages:
            del self._by_version[place.version]

    def of_version(self, version: int) -> list[int]:
        """All pages of a version."""
        return sorted(self._by_version.get(version, ()))

    def _pieces(self, tokens: Int32s) -> Iterator[bytes]:
        text = tokens.tobytes()
        for start in range(0, len(text), self._page_bytes):
            yield text[start : start + self._page_bytes]
