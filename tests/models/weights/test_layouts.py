"""Layouts are invertible, and a block of ours lies in the block of the file that they name."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.weights.layouts import Entry, Layout


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    order = draw(st.permutations(range(draw(st.integers(1, 4)))))
    cuts = draw(st.sets(st.integers(1, len(order) - 1))) if len(order) > 1 else set()
    bounds = [0, *sorted(cuts), len(order)]
    axes = tuple(tuple(order[start:stop]) for start, stop in itertools.pairwise(bounds))
    return Layout(axes), tuple(draw(st.integers(1, 5)) for _ in order)


@st.composite
def blocks(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(
        slice(*sorted((draw(st.integers(0, size)), draw(st.integers(0, size))))) for size in shape
    )


@settings(max_examples=50)
@given(layouts())
def test_there_and_back_is_the_identity(drawn) -> None:
    layout, shape = drawn
    ours = np.arange(np.prod(shape)).reshape(shape)
    tensor = layout.to_file(ours)
    assert tensor.shape == layout.file_shape(shape)
    np.testing.assert_array_equal(layout.to_ours(tensor, shape), ours)


@settings(max_examples=50)
@given(st.data())
def test_a_block_of_ours_is_cut_from_its_slices_of_the_file(data) -> None:
    layout, shape = data.draw(layouts())
    block = data.draw(blocks(shape))
    ours = np.arange(np.prod(shape)).reshape(shape)
    part = layout.to_file(ours)[layout.file_slices(shape, block)]
    np.testing.assert_array_equal(layout.cut_ours(part, shape, block), ours[block])


def test_a_cut_by_heads_reads_only_the_rows_of_these_heads() -> None:
    rows, columns = Layout(((1, 2), (0,))).file_slices(
        (8, 4, 3), (slice(2, 6), slice(1, 3), slice(None))
    )
    assert (rows, columns) == (slice(3, 9), slice(2, 6))


def test_a_name_may_count_layers_and_experts() -> None:
    entry = Entry(("layers", "up"), "l.{layer}.e.{expert}.up", Layout(((1,), (0,))))
    assert entry.stacked_axes == 2
    assert entry.tensor_name((1, 2)) == "l.1.e.2.up"
