"""Laws 3 to 6 and 16 on whole runs, whatever the latencies, the faults and trio's order are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controller.many_schedules import run_many
from tests.controller.oracle import (
    run_to_its_end,
    run_until_a_stage_fails,
    run_until_cancelled,
)

SHRINKING = pytest.mark.timeout(900)  # a failure takes a minute or more to become small


@SHRINKING
@settings(max_examples=15)
@given(data=st.data(), scheduling=st.random_module())
def test_laws_3_to_6_bounded_runs_end_and_keep_their_bounds(data, scheduling):
    run_to_its_end(data, deterministic=False)


@SHRINKING
@settings(max_examples=15)
@given(data=st.data(), scheduling=st.random_module())
def test_laws_3_to_6_lockstep_runs_end_and_keep_their_order(data, scheduling):
    run_to_its_end(data, deterministic=True)


@SHRINKING
@settings(max_examples=20)
@given(data=st.data(), scheduling=st.random_module())
def test_law_16_runs_cancelled_at_any_time_leave_nothing(data, scheduling):
    run_until_cancelled(data)


@SHRINKING
@settings(max_examples=20)
@given(data=st.data(), scheduling=st.random_module())
def test_conformance_1_a_stage_that_fails_at_any_time_ends_the_run_with_its_name(data, scheduling):
    run_until_a_stage_fails(data)


@pytest.mark.slow
@SHRINKING
def test_law_5_hundreds_of_schedules_without_a_deadlock():
    """Ten thousand: `python -m tests.controller.many_schedules`."""
    assert list(run_many(360, first_seed=0, at_once=60))[-1] == 360
