"""The block table of one trajectory."""

from dataclasses import dataclass, field

import numpy as np

from ..types import Int32s
from .moves import HostCopy


@dataclass(eq=False)
class Sequence:
    """The cached positions of one trajectory; while it decodes, those of when it began.

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
    pages: list[int] = field(default_factory=list)
    valid: int = 0
    fresh: bool = True
    spare: int | None = None
    copy: HostCopy | None = None
    tokens: Int32s = field(default_factory=lambda: np.zeros(0, np.int32))  # of an idle one

    @property
    def num_pages(self) -> int:
        """Pages on the device, or on the host if they are there."""
        return len(self.pages) if self.copy is None else self.copy.pages

    @property
    def held(self) -> list[int]:
        """Its pages, the spare one too."""
        return self.pages if self.spare is None else [*self.pages, self.spare]

    def write(self, end: int, version: int) -> None:
        """Note that the positions up to `end` are filled, with weights of this version."""
        self.valid = end
        if self.version != version:
            self.version, self.pinned = None, False  # no request pinned to one can go on from it
