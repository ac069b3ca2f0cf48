"""The persistent map against a plain dictionary."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.groups.numbered import Numbered

PICK = st.integers(0, 399)
changes = st.lists(
    st.tuples(st.sampled_from(["add", "add many", "skip", "replace", "remove"]), PICK),
    max_size=40,
)


@given(st.integers(0, 99), st.integers(0, 200), st.sets(st.integers(0, 199)), changes)
def test_it_equals_a_dictionary(
    begin: int, start: int, gone: set[int], changes: list[tuple[str, int]]
) -> None:
    numbered: Numbered[str] = Numbered()
    model: dict[int, str] = {}
    for number in range(begin, begin + start):
        numbered, model[number] = numbered.add(number, "first"), "first"
    following = begin + start
    removals = [("remove", begin + place) for place in sorted(gone) if place < start]
    for change, pick in removals + changes:
        before, items_before = numbered, list(numbered)
        found = pick in model
        assert numbered.get(pick) == model.get(pick)
        if change == "add":
            numbered, model[following] = numbered.add(following, f"{pick}"), f"{pick}"
            following += 1
        elif change == "add many":
            many = [f"{pick}.{place}" for place in range(pick % 80)]
            numbered = numbered.add(following, *many)
            model.update(enumerate(many, following))
            following += len(many)
        elif change == "skip":
            following += pick  # the next one to be added comes after a gap
        elif change == "replace" and found:
            numbered, model[pick] = numbered.replace(pick, "new"), "new"
        elif change == "remove" and found:
            numbered = numbered.remove(pick)
            del model[pick]
        assert list(before) == items_before  # the old map stays as it was
        assert list(numbered) == list(model.values())
        assert len(numbered) == len(model)
        assert numbered.first == next(iter(model.values()), None)
        assert not numbered.blocks or any(numbered.blocks[0])
    assert all(numbered.get(number) == model.get(number) for number in range(-1, following + 1))


def test_a_number_that_is_not_there_is_an_error() -> None:
    numbered = Numbered[str]().add(3, "three").add(4, "four").remove(3)
    for missing in (-30, 2, 3, 5, 40):
        with pytest.raises(KeyError):
            numbered.remove(missing)
        with pytest.raises(KeyError):
            numbered.replace(missing, "new")
