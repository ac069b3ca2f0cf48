"""A persistent sorted sequence: a change returns a new one and shares what stays the same.

Items stand in blocks of at most 128, each block and the row of blocks sorted by key, so that one
change copies two short tuples instead of one long one: a few microseconds at thousands of items.
"""

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

Item = TypeVar("Item")
Element = TypeVar("Element")

_BLOCK = 64  # half of the largest block: a block that outgrows it is cut in two


@dataclass(slots=True)
class Ordered(Generic[Item]):
    """Items in the order of `key`, a function to something that sorts; keys are unique.

    Nothing ever changes one. It isn't declared frozen, as making one would take twice as long.

    Attributes:
      ends: the last key of each block.

    Example:
      >>> numbers = Ordered(abs).add(3).add(-1).add(2)
      >>> list(numbers), len(numbers), numbers.first, numbers.get(3)
      ([-1, 2, 3], 3, -1, 3)
      >>> list(numbers.remove(2)), list(numbers.replace(-2))
      ([-1, 3], [-1, -2, 3])
    """

    key: Callable[[Item], Any]
    blocks: tuple[tuple[Item, ...], ...] = ()
    ends: tuple[Any, ...] = ()
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Item]:
        return itertools.chain.from_iterable(self.blocks)

    @property
    def first(self) -> Item | None:
        """The item with the smallest key, or None."""
        return self.blocks[0][0] if self.blocks else None

    def get(self, key: Any) -> Item | None:
        """Return the item with this key, or None."""
        at = bisect_left(self.ends, key)
        if at == len(self.ends):
            return None
        block = self.blocks[at]
        item = block[bisect_left(block, key, key=self.key)]
        return item if self.key(item) == key else None

    def add(self, item: Item) -> Self:
        """Return the sequence with `item` at its place."""
        if not self.blocks:
            return self._with_blocks(0, ((item,),), 1)
        key = self.key(item)
        at = bisect_left(self.ends, key)
        if at == len(self.ends):  # as mostly: at the end
            at -= 1
            block = (*self.blocks[at], item)
        else:
            block = self.blocks[at]
            place = bisect_left(block, key, key=self.key)
            block = (*block[:place], item, *block[place:])
        if len(block) > 2 * _BLOCK:
            return self._with_blocks(at, (block[:_BLOCK], block[_BLOCK:]), 1)
        return self._with_block(at, block, 1)

    def replace(self, item: Item) -> Self:
        """Return the sequence with `item` in the place of the one that has the same key.

        Raises:
          KeyError: if there is none.
        """
        at, place = self._find(self.key(item))
        block = self.blocks[at]
        return self._with_block(at, (*block[:place], item, *block[place + 1 :]), 0)

    def remove(self, key: Any) -> Self:
        """Return the sequence without the item with this key.

        Raises:
          KeyError: if there is none.
        """
        at, place = self._find(key)
        block = self.blocks[at]
        rest = block[:place] + block[place + 1 :]
        return self._with_block(at, rest, -1) if rest else self._with_blocks(at, (), -1)

    def split(self, count: int) -> tuple[tuple[Item, ...], Self]:
        """Return the first `count` items and the sequence of the others."""
        first = tuple(itertools.islice(self, count))
        at, left = 0, count
        while at < len(self.blocks) and len(self.blocks[at]) <= left:
            left -= len(self.blocks[at])
            at += 1
        blocks = self.blocks[at:]
        if left and blocks:
            blocks = (blocks[0][left:], *blocks[1:])
        return first, type(self)(self.key, blocks, self.ends[at:], self.size - len(first))

    def _find(self, key: Any) -> tuple[int, int]:
        """The block that has an item with this key, and the item's place in it."""
        at = bisect_left(self.ends, key)
        if at < len(self.ends):
            block = self.blocks[at]
            place = bisect_left(block, key, key=self.key)
            if self.key(block[place]) == key:
                return at, place
        raise KeyError(key)

    def _with_block(self, at: int, block: tuple[Item, ...], growth: int) -> Self:
        """Put another block in the place of one: what most changes need."""
        blocks = (*self.blocks[:at], block, *self.blocks[at + 1 :])
        ends, end = self.ends, self.key(block[-1])
        if end != ends[at]:
            ends = (*ends[:at], end, *ends[at + 1 :])
        return type(self)(self.key, blocks, ends, self.size + growth)

    def _with_blocks(self, at: int, by: tuple[tuple[Item, ...], ...], growth: int) -> Self:
        """Put any number of blocks in the place of one."""
        blocks = self.blocks[:at] + by + self.blocks[at + 1 :]
        ends = tuple(self.key(block[-1]) for block in by)
        ends = self.ends[:at] + ends + self.ends[at + 1 :]
        return type(self)(self.key, blocks, ends, self.size + growth)
