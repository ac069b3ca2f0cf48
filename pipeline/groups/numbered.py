"""A persistent map from numbers that only grow to items: a change returns a new one.

Items stand in blocks of 32 places, found by counting alone; who has left leaves an empty place. So
one change copies one block and the row of blocks, which takes below a microsecond where the first
and the last number are some thousands apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")

_PLACES = 32
_EMPTY = (None,) * _PLACES


@dataclass(slots=True)
class Numbered(Generic[Item]):
    """Items in the order of their numbers. An item is something true, such as a record.

    Nothing ever changes one. It isn't declared frozen, as making one would take twice as long.

    Attributes:
      begin: the number of the first place.
      blocks: of all places; the first block is never empty.

    Example:
      >>> names = Numbered().add(7, "a", "b").add(9, "c")
      >>> names.get(8), len(names), names.first
      ('b', 3, 'a')
      >>> list(names.remove(7)), list(names.replace(9, "d"))
      (['b', 'c'], ['a', 'b', 'd'])
    """

    begin: int = 0
    blocks: tuple[tuple[Item | None, ...], ...] = ()
    size: int = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Item]:
        return filter(None, chain.from_iterable(self.blocks))

    @property
    def first(self) -> Item | None:
        """The item with the smallest number, or None."""
        return next(iter(self), None)

    def get(self, number: int) -> Item | None:
        """Return the item with this number, or None."""
        at, place = divmod(number - self.begin, _PLACES)
        return self.blocks[at][place] if 0 <= at < len(self.blocks) else None

    def add(self, number: int, *items: Item) -> Self:
        """Return the map with new items, numbered from `number` on, which is above all before."""
        begin = self.begin if self.blocks else number
        first, place = divmod(number - begin, _PLACES)
        # The places before them in the block that they begin in.
        old = next(iter(self.blocks[first:]), _EMPTY)[:place]
        before = self.blocks[:first] + (_EMPTY,) * (first - len(self.blocks))
        return type(self)(begin, before + _in_blocks((*old, *items)), self.size + len(items))

    def replace(self, number: int, item: Item) -> Self:
        """Return the map with another item in the place of the one with this number.

        Raises:
          KeyError: if there is none.
        """
        return type(self)(self.begin, self._changed(number, item), self.size)

    def remove(self, number: int) -> Self:
        """Return the map without the item with this number.

        Raises:
          KeyError: if there is none.
        """
        begin, blocks = self.begin, self._changed(number, None)
        while blocks and not any(blocks[0]):
            begin, blocks = begin + _PLACES, blocks[1:]
        return type(self)(begin, blocks, self.size - 1)

    def _changed(self, number: int, item: Item | None) -> "_Blocks[Item]":
        """Put another item, or none, in the place of the one with this number."""
        at, place = divmod(number - self.begin, _PLACES)
        if not 0 <= at < len(self.blocks) or self.blocks[at][place] is None:
            raise KeyError(number)
        changed, block = list(self.blocks), list(self.blocks[at])
        block[place] = item
        changed[at] = tuple(block)
        return tuple(changed)


_Blocks = tuple[tuple[Item | None, ...], ...]


def _in_blocks(places: tuple[Item | None, ...]) -> _Blocks[Item]:
    full = places + _EMPTY[: -len(places) % _PLACES]
    return tuple([full[at : at + _PLACES] for at in range(0, len(full), _PLACES)])
