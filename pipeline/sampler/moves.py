"""What the device is told to do with whole pages, in the order in which it must be done."""

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(eq=False)
class HostCopy:
    """Pages on the host.

    Attributes:
      pages: how many.
      data: what `Extract` brought; the engine sets it.
    """

    pages: int
    data: Any = None


class Extract(NamedTuple):
    """Copy pages to the host, before anybody else writes them."""

    pages: list[int]
    copy: HostCopy


class Insert(NamedTuple):
    """Copy pages back from the host, into others."""

    copy: HostCopy
    pages: list[int]


class Duplicate(NamedTuple):
    """Copy one page to another on the device."""

    source: int
    target: int


Move = Extract | Insert | Duplicate
