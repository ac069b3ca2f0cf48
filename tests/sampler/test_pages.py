"""The pool of pages against sets: who has what, what is busy, and which page is taken next."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.pipeline.sampler.pages import BIN, Page, PagePool

PAGES = 6


class Pool(RuleBasedStateMachine):
    """Holders, some with a row, that share pages of a small pool."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[Page] = []
        self.pool = PagePool(PAGES, forget=self.forget)
        self.holds: list[tuple[Page, bool]] = []  # a page, and whether its holder has a row
        self.loose: list[Page] = []  # the longest loose one first
        self.pages: list[Page] = []

    def forget(self, page: Page) -> None:
        page.indexed = False
        self.forgotten.append(page)

    def users_of(self, page: Page) -> list[bool]:
        return [busy for held, busy in self.holds if held is page]

    @precondition(lambda self: self.pool.at_hand)
    @rule(indexed=st.booleans())
    def take(self, indexed: bool) -> None:
        free = self.pool.at_hand - len(self.loose)
        expected = [] if free else [self.loose.pop(0)]
        page = self.pool.take()
        assert self.forgotten == expected
        self.forgotten.clear()
        assert not page.filled
        assert not page.indexed
        page.indexed = indexed
        self.holds.append((page, True))

    @precondition(lambda self: not self.pool.at_hand)
    @rule()
    def take_none(self) -> None:
        with pytest.raises(KeyError):
            self.pool.take()

    @precondition(lambda self: self.holds or self.loose)
    @rule(data=st.data())
    def share(self, data: Any) -> None:
        known = [*self.loose, *dict.fromkeys(page for page, _ in self.holds)]
        page = data.draw(st.sampled_from(known))
        self.pool.hold(page)
        self.holds.append((page, True))
        self.loose = [other for other in self.loose if other is not page]

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def change(self, data: Any) -> None:
        """A holder gets a row, or leaves it."""
        index = data.draw(st.integers(0, len(self.holds) - 1))
        page, busy = self.holds[index]
        (self.pool.leave if busy else self.pool.enter)(page)
        self.holds[index] = page, not busy

    @precondition(lambda self: not all(busy for _, busy in self.holds))
    @rule(data=st.data(), several=st.booleans())
    def drop(self, data: Any, several: bool) -> None:
        idle = [hold for hold in self.holds if not hold[1]]
        dropped = idle if several else [data.draw(st.sampled_from(idle))]
        if several:
            self.pool.drop_all(page for page, _ in dropped)
        else:
            self.pool.drop(dropped[0][0])
        for page, _ in reversed(dropped):
            self.holds.remove((page, False))
            if page.indexed and not self.users_of(page):
                self.loose.append(page)

    @precondition(lambda self: self.loose)
    @rule(data=st.data())
    def forget_loose(self, data: Any) -> None:
        page = data.draw(st.sampled_from(self.loose))
        page.indexed = False
        self.pool.settle(page)
        self.loose.remove(page)

    @invariant()
    def counts_are_right(self) -> None:
        held = list(dict.fromkeys(page for page, _ in self.holds))
        numbers = [page.number for page in [*held, *self.loose]]
        assert BIN not in numbers
        assert len(set(numbers)) == len(numbers), "a page was given away twice"
        assert self.pool.at_hand == self.pool.capacity - len(held)
        busy = {page for page, has_row in self.holds if has_row}
        assert self.pool.busy == len(busy)
        assert self.pool.available == PAGES - 1 - len(busy)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=25)
