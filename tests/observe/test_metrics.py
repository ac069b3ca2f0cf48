import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.observe.metrics import Rates, peak_rss_bytes


def test_first_reading_has_no_rate():
    assert Rates().update({"tokens": 500.0}, now_seconds=7.0) == {"tokens": 0.0}


def test_two_readings_at_the_same_time_have_no_rate():
    rates = Rates()
    rates.update({"tokens": 1.0}, now_seconds=7.0)
    assert rates.update({"tokens": 9.0}, now_seconds=7.0) == {"tokens": 0.0}


def test_name_that_appears_later_counts_from_there():
    rates = Rates()
    rates.update({"tokens": 1.0}, now_seconds=0.0)
    assert rates.update({"tokens": 3.0, "busy": 99.0}, now_seconds=2.0)["busy"] == 0.0


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 100.0)), min_size=1))
def test_rate_equals_difference_over_the_window(moves: list[tuple[float, float]]):
    window = 10.0
    rates = Rates(window_seconds=window)
    now, total = 0.0, 0.0
    readings = [(now, total)]
    rates.update({"x": total}, now_seconds=now)
    for passed, gained in moves:
        now, total = now + passed, total + gained
        readings.append((now, total))
        rate = rates.update({"x": total}, now_seconds=now)["x"]
        # Oracle: the newest reading that is a window old, the first one before that.
        old = [reading for reading in readings[:-1] if now - reading[0] >= window]
        then, before = old[-1] if old else readings[0]
        assert rate == pytest.approx((total - before) / (now - then))


def test_memory_is_bounded():
    rates = Rates(window_seconds=10.0)
    for second in range(1000):
        rates.update({"x": float(second)}, now_seconds=float(second))
    assert len(rates._readings) <= 12


def test_peak_rss_is_in_bytes():
    assert 10 * 2**20 < peak_rss_bytes() < 2**40
