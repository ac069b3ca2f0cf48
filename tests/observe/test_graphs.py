import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.pipeline.observe.graphs import History, duration, number, sparkline

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=80)


@given(VALUES, st.integers(-2, 40))
def test_sparkline_is_as_wide_as_its_values_and_never_wider_than_asked(values, width):
    drawn = sparkline(values, width=width)
    assert len(drawn) == min(len(values), max(width, 0)) == cell_len(drawn)


@given(VALUES.filter(bool), st.integers(1, 40))
def test_sparkline_keeps_order(values, width):
    drawn = sparkline(sorted(values), width=width)
    assert list(drawn) == sorted(drawn)


@given(VALUES.filter(bool))
def test_sparkline_outside_its_scale_is_clipped(values):
    drawn = sparkline(values, width=99, low=0.0, high=1e-9)
    assert set(drawn) <= set("▁▂▃▄▅▆▇█")


@given(st.floats() | st.integers(-(10**12), 10**12))
def test_number_is_short(value):
    assert len(number(value)) <= 8


def test_missing_numbers_are_dashes():
    assert [number(value) for value in (None, math.nan, math.inf)] == ["–", "–", "–"]


def test_duration_is_never_negative():
    assert duration(-3.0) == "0:00"


@given(st.lists(st.floats(-100, 100), max_size=300), st.sampled_from([2, 4, 16]))
def test_history_is_bounded_and_keeps_the_mean(values, capacity):
    history = History(capacity=capacity)
    for value in values:
        history.append(value)
        assert len(history.values()) <= capacity + 1
    length = 1
    while len(values) // length > capacity:
        length *= 2
    runs = [values[start : start + length] for start in range(0, len(values), length)]
    assert history.values() == pytest.approx([sum(run) / len(run) for run in runs], abs=1e-9)


def test_history_leaves_out_what_is_not_finite():
    history = History()
    for value in (1.0, math.nan, math.inf, 2.0):
        history.append(value)
    assert history.values() == [1.0, 2.0]
