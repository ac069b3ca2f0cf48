"""Units stay whole in one microbatch, nothing is lost, and the bound always suffices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.packing import PackItem
from headrace.pipeline.groups.together import microbatches_for_units, pack_together

T = 8


def item(number, length):
    tokens = np.full(length, number, np.int32)
    numbers = np.zeros(length, np.float32)
    return PackItem(tokens, np.ones(length, np.bool_), numbers, numbers)


def units_of(lengths):
    numbers = iter(range(1, 1000))
    return [[item(next(numbers), length) for length in unit] for unit in lengths]


LENGTHS = st.lists(st.lists(st.integers(1, T), min_size=1, max_size=2), max_size=20)


@given(LENGTHS, st.integers(2, 5))
def test_law_10_units_are_whole_and_are_where_they_are_said_to_be(lengths, rows):
    units = units_of(lengths)
    needed = microbatches_for_units(len(units), rows)
    batch, places = pack_together(units, microbatches=needed, rows=rows, row_tokens=T)
    assert batch.tokens.shape == (needed, rows, T)
    assert int(batch.microbatches) <= needed
    found = 0
    for unit, (microbatch, begins) in zip(units, places, strict=True):
        assert microbatch < int(batch.microbatches)
        flat = batch.tokens[microbatch].reshape(-1)
        ids = batch.segment_ids[microbatch].reshape(-1)
        positions = batch.positions[microbatch].reshape(-1)
        for each, begin in zip(unit, begins, strict=True):
            end = begin + len(each.tokens)
            np.testing.assert_array_equal(flat[begin:end], each.tokens)
            np.testing.assert_array_equal(positions[begin:end], np.arange(end - begin))
            assert len(set(ids[begin:end])) == 1
            assert ids[begin] > 0
            found += end - begin
    assert found == int((batch.segment_ids > 0).sum())


def test_the_bound_is_reached_by_the_longest():
    units = units_of([[T, T]] * 7)
    needed = microbatches_for_units(7, rows=5)
    batch, _ = pack_together(units, microbatches=needed, rows=5, row_tokens=T)
    assert int(batch.microbatches) == needed == 4


def test_what_does_not_fit_is_an_error():
    with pytest.raises(ConfigError, match="9 tokens does not fit into a row of 8"):
        pack_together(units_of([[9, 1]]), microbatches=1, rows=2, row_tokens=T)
    with pytest.raises(ValueError, match="need 2 microbatches, there are 1"):
        pack_together(units_of([[T, T]] * 2), microbatches=1, rows=2, row_tokens=T)
