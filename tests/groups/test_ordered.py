"""The persistent sequence against a plain sorted list."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.groups.ordered import Ordered

changes = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 999)),
        st.tuples(st.just("remove"), st.integers(0, 999)),
        st.tuples(st.just("split"), st.integers(0, 40)),
    ),
    max_size=30,
)


@given(st.integers(0, 700), changes)
def test_it_equals_a_sorted_list(start: int, changes: list[tuple[str, int]]) -> None:
    numbers: Ordered[int] = Ordered(int)
    for value in range(start):
        numbers = numbers.add(value * 7919 % 997)
    model = sorted(value * 7919 % 997 for value in range(start))
    for change, value in changes:
        before = list(numbers)
        if change == "add" and value not in model:
            after = numbers.add(value)
            model = sorted([*model, value])
        elif change == "remove":
            found, after = numbers.remove(value)
            assert found == (value if value in model else None)
            model = [number for number in model if number != value]
        elif change == "split":
            first, after = numbers.split(value)
            assert list(first) == model[:value]
            model = model[value:]
        else:
            continue
        assert list(numbers) == before  # the old sequence stays as it was
        numbers = after
        assert list(numbers) == model
        assert len(numbers) == len(model)
        assert all(0 < len(block) <= 128 for block in numbers.blocks)
