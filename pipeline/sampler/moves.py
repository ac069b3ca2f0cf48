"""What the device is told to do with whole pages, in the order in which it must be done."""

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(eq=False)
class HostCopy:
    """Pages on the host.

    Attributes:
      pages: how many.
      data: what `Programs.extract` brought; the engine sets it.
    """

    pages: int
    data: Any = None


class Extract(NamedTuple):
    """Copy pages of a shard to the host, before anybody else writes them."""

    shard: int
    pages: list[int]
    copy: HostCopy


class Insert(NamedTuple):
    """Copy pages back from the host, into others of the same shard."""

    shard: int
    copy: HostCopy
    pages: list[int]


class Duplicate(NamedTuple):
    """Copy one page of a shard to another on the device."""

    shard: int
    source: int
    target: int


Move = Extract | Insert | Duplicate
