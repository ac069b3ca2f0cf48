"""The block table of one trajectory."""

from dataclasses import dataclass, field

import numpy as np

from ..types import Int32s
from .moves import HostCopy
from .pages import Page


@dataclass(eq=False)
class Sequence:
    """The cached positions of one trajectory.

    Attributes:
      pages: its block table.
      valid: positions 0..valid-1 are filled.
      version: the only policy version behind what is cached; None where there were several.
      pinned: whether its requests name a version.
      fresh: whether prefill fills it from the first token on, so that its pages are shared.
      spare: the page that will replace the one where the prompt ends, which others share too.
      copy: where the pages are, if they are on the host.
    """

    version: int | None
    pinned: bool
    pages: list[Page] = field(default_factory=list)
    valid: int = 0
    fresh: bool = True
    spare: Page | None = None
    copy: HostCopy | None = None
    tokens: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))  # of an idle one

    @property
    def num_pages(self) -> int:
        """Pages on the device, or on the host if they are there."""
        return len(self.pages) if self.copy is None else self.copy.pages

    def numbers(self) -> list[int]:
        """The page numbers of its block table."""
        return [page.number for page in self.pages]

    def advance(self, to_fill: int, page_tokens: int) -> int:
        """Count what is filled, also by others who share the pages; return `valid`.

        Args:
          to_fill: positions that are wanted.
        """
        while self.fresh and self.valid < to_fill:
            page, offset = divmod(self.valid, page_tokens)
            filled = self.pages[page].filled
            if filled <= offset:
                break
            self.valid = min(page * page_tokens + filled, to_fill)
        return self.valid

    def mark(self, end: int, version: int, page_tokens: int) -> None:
        """Note that prefill fills the positions up to `end` before anything reads them."""
        if self.fresh:
            for index in range(self.valid // page_tokens, -(-end // page_tokens)):
                page = self.pages[index]
                page.filled = max(page.filled, min(end - index * page_tokens, page_tokens))
        self.write(end, version)

    def write(self, end: int, version: int) -> None:
        """Note that the positions up to `end` are filled, with weights of this version."""
        self.valid = end
        if self.version != version:
            self.version, self.pinned = None, False  # no request pinned to one can go on from it
