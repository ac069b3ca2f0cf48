"""The prefix index against a list of all texts that were entered."""

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.sampler.prefixes import PrefixIndex
from headrace.pipeline.types import Int32s

SIZE = 2
PAGES = 100
# Few tokens, so that texts share their beginnings; 256 has a byte of 0 and one of 1.
Texts = st.lists(st.sampled_from([0, 1, 256]), max_size=9).map(
    lambda tokens: np.array(tokens, np.int32)
)
Versions = st.integers(0, 1)


class Entry(NamedTuple):
    """A page that the index should know, and what stands in and before it."""

    version: int
    text: tuple[int, ...]
    pages: tuple[int, ...]  # up to this one


def known(entries: list[Entry], version: int, tokens: Int32s) -> list[int]:
    """The longest chain of pages, by search."""
    found: list[int] = []
    for end in range(SIZE, len(tokens) + SIZE, SIZE):
        text = tuple(tokens[:end].tolist())
        match = [one for one in entries if one.version == version and one.text == text]
        match = [one for one in match if list(one.pages[:-1]) == found]
        if not match:
            break
        found.append(match[0].pages[-1])
    return found


def enter(index: PrefixIndex, entries: list[Entry], version: int, tokens: Int32s) -> None:
    """As the memory does: what is known stays, the rest gets new pages."""
    found = index.find(version, tokens)
    free = [page for page in range(PAGES) if page not in index]
    pages = [*found, *free[: -(-len(tokens) // SIZE) - len(found)]]
    index.add(version, tokens, pages)
    for count in range(len(found) + 1, len(pages) + 1):
        text = tuple(tokens[: count * SIZE].tolist())
        entries.append(Entry(version, text, tuple(pages[:count])))


Actions = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), Texts, Versions),
        st.tuples(st.just("enter"), Texts, Versions),
        st.tuples(st.just("forget"), st.integers(0, 5), Versions),
        st.tuples(st.just("forget version"), st.none(), Versions),
    ),
    max_size=12,
)


@given(Actions, st.lists(Texts, min_size=1, max_size=4))
def test_what_is_found_is_the_longest_known_start_with_the_right_version(
    actions: list[tuple], texts: list[Int32s]
) -> None:
    index, entries = PrefixIndex(SIZE), list[Entry]()
    for kind, value, version in actions:
        if kind == "enter":
            enter(index, entries, version, value)
            texts.append(value)
        elif kind == "forget version":
            for page in index.of_version(version):
                index.forget(page)
            entries = [one for one in entries if one.version != version]
        elif value < len(entries):
            index.forget(entries.pop(value).pages[-1])
        assert len(index) == len(entries)
        for tokens in texts:
            for each in (0, 1):
                assert index.find(each, tokens) == known(entries, each, tokens)
    pages = {each: {one.pages[-1] for one in entries if one.version == each} for each in (0, 1)}
    for each, expected in pages.items():
        assert set(index.of_version(each)) == expected
        assert all(page in index for page in expected)


def test_nothing_is_left_of_what_was_forgotten() -> None:
    index = PrefixIndex(SIZE)
    enter(index, [], 3, np.arange(7, dtype=np.int32))
    for page in index.of_version(3):
        index.forget(page)
        assert page not in index
    assert not index._pages
    assert not index._places
    assert not index._by_version
