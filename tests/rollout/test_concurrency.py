"""The limit follows the sampler's load, within its bounds, whatever that load is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.rollout.concurrency import Concurrency, episode_ended, start
from headrace.pipeline.types import SamplerLoad

IDLE = SamplerLoad(rows=8, rows_busy=3, waiting=0)
FULL = SamplerLoad(rows=8, rows_busy=8, waiting=3)  # busy, and a short queue keeps it so
QUEUED = SamplerLoad(rows=8, rows_busy=8, waiting=5)  # over half of the rows
LOW = SamplerLoad(rows=8, rows_busy=8, waiting=3, pages_free=0.05)
PREEMPTED = SamplerLoad(rows=8, rows_busy=8, waiting=0, preemptions=1)


def after(load, *, episodes, cap=1000, limit=16.0):
    state = Concurrency(cap, limit)
    for _ in range(episodes):
        state = episode_ended(state, load)
    return state.limit


def test_it_begins_with_two_episodes_a_row_or_the_cap():
    assert start(1000, IDLE).limit == 16.0
    assert start(10, IDLE).limit == 10.0


@pytest.mark.parametrize(
    ("load", "limit"),
    [(IDLE, 20.0), (FULL, 16.0), (QUEUED, 15.2), (LOW, 15.2)],
)
def test_once_in_a_turnover_it_moves_by_what_the_sampler_is_short_of(load, limit):
    assert after(load, episodes=15) == 16.0
    assert after(load, episodes=16) == pytest.approx(limit)


def test_a_preemption_cuts_it_after_a_quarter_of_a_turnover():
    assert after(PREEMPTED, episodes=3) == 16.0
    assert after(PREEMPTED, episodes=4) == 12.0


def test_one_preemption_cuts_it_once():
    assert after(PREEMPTED, episodes=8) == 12.0


def test_idle_rows_let_it_grow_to_the_cap_and_no_further():
    assert after(IDLE, episodes=5000, cap=300) == 300.0


def test_queues_shrink_it_to_one_and_no_further():
    assert after(QUEUED, episodes=5000) == 1.0


def test_it_settles_where_the_queue_is_short():
    """Episodes that only sample: those beyond the rows wait."""
    state = start(1000, IDLE)
    seen = []
    for _ in range(3000):
        waiting = max(0, int(state.limit) - 8)
        state = episode_ended(state, SamplerLoad(8, min(8, int(state.limit)), waiting))
        seen.append(state.limit)
    assert all(8 <= limit <= 12.5 for limit in seen[1000:])


@st.composite
def loads(draw):
    rows = draw(st.integers(1, 64))
    return SamplerLoad(
        rows,
        draw(st.integers(0, rows)),
        draw(st.integers(0, 200)),
        draw(st.floats(0, 1)),
        draw(st.integers(0, 50)),
    )


@given(cap=st.integers(1, 100), first=loads(), more=st.lists(loads(), max_size=200))
def test_it_stays_from_one_to_its_cap_and_moves_by_a_quarter_at_most(cap, first, more):
    state = start(cap, first)
    for load in more:
        moved = episode_ended(state, load)
        assert 1 <= moved.limit <= cap
        assert 0.749 < moved.limit / state.limit < 1.251 or moved.limit == 1
        assert moved.ended in (0, state.ended + 1)
        state = moved
