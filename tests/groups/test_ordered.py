"""The persistent sequence against a plain sorted list."""

from dataclasses import dataclass
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.groups.ordered import Ordered


@dataclass(frozen=True)
class Named:
    number: int
    name: str = ""


changes = st.lists(
    st.tuples(st.sampled_from(["add", "replace", "remove"]), st.integers(0, 999))
    | st.tuples(st.just("split"), st.integers(0, 40)),
    max_size=30,
)


@given(st.integers(0, 700), changes)
def test_it_equals_a_sorted_list(start: int, changes: list[tuple[str, int]]) -> None:
    ordered: Ordered[Named] = Ordered(attrgetter("number"))
    for value in range(start):
        ordered = ordered.add(Named(value * 7919 % 997))
    model = [Named(number) for number in sorted(value * 7919 % 997 for value in range(start))]
    for change, value in changes:
        before = list(ordered)
        found = [item for item in model if item.number == value]
        others = [item for item in model if item.number != value]
        assert ordered.get(value) == (found[0] if found else None)
        if change == "split":
            first, after = ordered.split(value)
            assert list(first) == model[:value]
            model = model[value:]
        elif change == "add" and not found:
            after = ordered.add(Named(value))
            model = sorted([*model, Named(value)], key=attrgetter("number"))
        elif change == "replace" and found:
            after = ordered.replace(Named(value, "new"))
            model = sorted([*others, Named(value, "new")], key=attrgetter("number"))
        elif change == "remove" and found:
            after = ordered.remove(value)
            model = others
        else:
            continue
        assert list(ordered) == before  # the old sequence stays as it was
        ordered = after
        assert list(ordered) == model
        assert len(ordered) == len(model)
        assert ordered.first == (model[0] if model else None)
        assert all(0 < len(block) <= 128 for block in ordered.blocks)
        assert ordered.ends == tuple(block[-1].number for block in ordered.blocks)


def test_a_key_that_is_not_there_is_an_error() -> None:
    numbers = Ordered(abs).add(2)
    for missing in (1, 3):
        with pytest.raises(KeyError):
            numbers.remove(missing)
        with pytest.raises(KeyError):
            numbers.replace(missing)
