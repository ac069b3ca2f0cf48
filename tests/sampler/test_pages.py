"""The pool of pages against sets: who has what, what is busy, and which page is taken next."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.pipeline.sampler.pages import BIN, PagePool
from headrace.pipeline.types import Int32s

PAGES = 7


def numbers(*pages: int) -> Int32s:
    return np.array(pages, np.int32)


class Pool(RuleBasedStateMachine):
    """Holders, some with a row, that share pages of a small pool."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[int] = []
        self.known = np.zeros(PAGES, np.bool_)
        self.pool = PagePool(self.known, forget=self.forget)
        self.holds: list[tuple[int, bool]] = []  # a page, and whether its holder has a row
        self.loose: list[int] = []  # the longest loose one first

    def forget(self, page: int) -> None:
        self.known[page] = False
        self.forgotten.append(page)

    def users_of(self, page: int) -> list[bool]:
        return [busy for held, busy in self.holds if held == page]

    @rule(count=st.integers(0, 3), known=st.booleans())
    def take(self, count: int, known: bool) -> None:
        if count > self.pool.at_hand:
            return
        free = self.pool.at_hand - len(self.loose)
        expected = [self.loose.pop(0) for _ in range(count - free)]
        pages = self.pool.take(count)
        assert self.forgotten == expected
        self.forgotten.clear()
        assert pages.dtype == np.int32
        assert len(set(pages.tolist())) == count
        assert not self.known[pages].any()
        self.known[pages] = known
        self.holds += [(page, True) for page in pages.tolist()]

    @precondition(lambda self: not self.pool.at_hand)
    @rule()
    def take_none(self) -> None:
        with pytest.raises(KeyError):
            self.pool.take(1)

    @precondition(lambda self: self.holds or self.loose)
    @rule(data=st.data())
    def share(self, data: Any) -> None:
        known = [*self.loose, *dict.fromkeys(page for page, _ in self.holds)]
        pages = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=3))
        self.pool.hold(numbers(*pages))
        self.holds += [(page, True) for page in pages]
        self.loose = [other for other in self.loose if other not in pages]

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), has_row=st.booleans())
    def change(self, data: Any, has_row: bool) -> None:
        """Holders get a row, or leave it."""
        pages = data.draw(st.sets(st.sampled_from([page for page, _ in self.holds]), max_size=3))
        changing = [page for page in pages if (page, has_row) in self.holds]
        (self.pool.leave if has_row else self.pool.enter)(numbers(*changing))
        for page in changing:
            self.holds[self.holds.index((page, has_row))] = page, not has_row

    @precondition(lambda self: not all(busy for _, busy in self.holds))
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        idle = [page for page, has_row in self.holds if not has_row]
        dropped = data.draw(st.lists(st.sampled_from(idle), unique=True))
        self.pool.drop(numbers(*dropped))
        for page in reversed(dropped):
            self.holds.remove((page, False))
            if self.known[page] and not self.users_of(page):
                self.loose.append(page)

    @rule(data=st.data())
    def forget_one(self, data: Any) -> None:
        """The index forgets a page, loose or held."""
        known = np.flatnonzero(self.known).tolist()
        if not known:
            return
        page = data.draw(st.sampled_from(known))
        self.known[page] = False
        self.pool.settle(page)
        self.loose = [other for other in self.loose if other != page]

    @invariant()
    def counts_are_right(self) -> None:
        held = {page for page, _ in self.holds}
        assert BIN not in held
        assert not held & set(self.loose), "a page was given away twice"
        assert list(self.pool._loose) == self.loose
        assert self.pool.at_hand == self.pool.capacity - len(held)
        busy = {page for page, has_row in self.holds if has_row}
        assert self.pool.busy == len(busy)
        assert self.pool.available == PAGES - 1 - len(busy)
        every = np.arange(PAGES)
        assert self.pool.unused(every) == PAGES - len(busy)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=25)
