"""Laws 3 to 6 and 16 on whole runs, whatever the latencies, the faults and trio's order are."""

import pytest
import trio
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.controller.oracle import check, check_whole
from tests.controller.schedules import DEADLINE, DrawnRun


def run_to_its_end(data, deterministic):
    run = DrawnRun(data, deterministic=deterministic)
    run.go(deadline_seconds=DEADLINE)
    check_whole(run)


def run_until_cancelled(data):
    run = DrawnRun(data, deterministic=data.draw(st.booleans()))
    at = data.draw(st.integers(0, 1500), label="cancelled after tenths of a second") / 10
    try:
        run.go(deadline_seconds=at + 1e-3)
    except trio.TooSlowError:
        check(run)
    else:
        check_whole(run)


@settings(max_examples=60)
@given(data=st.data(), scheduling=st.random_module())
def test_laws_3_to_6_bounded_runs_end_and_keep_their_bounds(data, scheduling):
    run_to_its_end(data, deterministic=False)


@settings(max_examples=40)
@given(data=st.data(), scheduling=st.random_module())
def test_laws_3_to_6_lockstep_runs_end_and_keep_their_order(data, scheduling):
    run_to_its_end(data, deterministic=True)


@settings(max_examples=40)
@given(data=st.data(), scheduling=st.random_module())
def test_law_16_runs_cancelled_at_any_time_leave_nothing(data, scheduling):
    run_until_cancelled(data)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", range(10))
def test_law_5_ten_thousand_schedules_without_a_deadlock(number):
    """A thousand schedules; the ten parts together are the ten thousand."""

    @seed(number)
    @settings(max_examples=1000)
    @given(data=st.data(), scheduling=st.random_module(), kind=st.integers(0, 3))
    def all_end(data, scheduling, kind):
        if kind == 3:
            run_until_cancelled(data)
        else:
            run_to_its_end(data, deterministic=kind == 2)

    all_end()
