"""The pool of pages against sets: who has what, what is busy, and which page is taken next."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.pipeline.sampler.pages import BIN, PagePool

PAGES = 7


class Pool(RuleBasedStateMachine):
    """Holders, some with a row, that share pages of a small pool; and the index of it."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: list[int] = []
        self.known: set[int] = set()
        self.pool = PagePool(PAGES, self)
        self.holds: list[tuple[int, bool]] = []  # a page, and whether its holder has a row
        self.loose: list[int] = []  # the longest loose one first
        self.counted: set[int] = set()

    # As the index

    def __contains__(self, page: int) -> bool:
        return page in self.known

    def forget(self, page: int) -> None:
        self.known.remove(page)
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
        self.counted -= set(expected)
        self.forgotten.clear()
        assert len(set(pages)) == count
        assert not self.known & set(pages)
        if known:
            self.pool.share(pages)
            self.known |= set(pages)
            self.counted |= set(pages)
        self.holds += [(page, True) for page in pages]

    @precondition(lambda self: not self.pool.at_hand)
    @rule()
    def take_none(self) -> None:
        with pytest.raises(KeyError):
            self.pool.take(1)

    @precondition(lambda self: self.loose or any(page in self.counted for page, _ in self.holds))
    @rule(data=st.data())
    def share(self, data: Any) -> None:
        held = dict.fromkeys(page for page, _ in self.holds if page in self.counted)
        pages = data.draw(st.lists(st.sampled_from([*self.loose, *held]), unique=True, max_size=3))
        self.pool.hold(pages)
        self.holds += [(page, True) for page in pages]
        self.loose = [other for other in self.loose if other not in pages]

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), has_row=st.booleans())
    def change(self, data: Any, has_row: bool) -> None:
        """Holders get a row, or leave it."""
        pages = data.draw(st.sets(st.sampled_from([page for page, _ in self.holds]), max_size=3))
        changing = [page for page in pages if (page, has_row) in self.holds]
        (self.pool.leave if has_row else self.pool.enter)(changing)
        for page in changing:
            self.holds[self.holds.index((page, has_row))] = page, not has_row

    @precondition(lambda self: not all(busy for _, busy in self.holds))
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        idle = [page for page, has_row in self.holds if not has_row]
        dropped = data.draw(st.lists(st.sampled_from(idle), unique=True))
        self.pool.drop(dropped)
        for page in reversed(dropped):
            self.holds.remove((page, False))
            if page in self.known and not self.users_of(page):
                self.loose.append(page)
            elif not self.users_of(page):
                self.counted.discard(page)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def forget_one(self, data: Any) -> None:
        """The index forgets a page, loose or held."""
        page = data.draw(st.sampled_from(sorted(self.known)))
        self.known.remove(page)
        self.pool.settle(page)
        self.counted -= {page} & set(self.loose)
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
        counted = sorted(self.counted)
        assert self.pool.unused(counted) == len(self.counted - busy)
        assert set(self.pool._users) == set(self.pool._busy) == self.counted
        idle = [page for page, has_row in self.holds if not has_row and page not in counted]
        assert self.pool.unused(idle) == len(idle)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=25)
