"""The closed forms of the simulated engine against the same thing done one step at a time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.simulate.decoding import Decoder
from headrace.pipeline.simulate.jobs import Job
from headrace.pipeline.simulate.sampler import by_version
from headrace.pipeline.simulate.speeds import SamplerCosts
from tests.simulate.naive import Naive, NaiveJob

MOST_TOKENS = 30  # of a request with all that is sampled

# Costs are multiples of a millisecond and the differences of these are not, so that nothing
# happens exactly at the end of a step, where rounding would decide.
TIMES = st.integers(0, 300).map(lambda number: 0.010007213 * number)
DELAYS = st.integers(1, 300).map(lambda number: 0.003000719 * number)


@st.composite
def costs(draw):
    seconds = st.sampled_from([0.0, 0.001, 0.003])
    return SamplerCosts(
        dispatch_seconds=draw(st.sampled_from([0.01, 0.05])),
        row_seconds=draw(seconds),
        kv_token_seconds=draw(seconds),
        prefill_token_seconds=draw(seconds),
        publish_seconds=draw(st.sampled_from([0.0, 0.2])),
        rows=draw(st.integers(1, 4)),
        kv_tokens=draw(st.none() | st.integers(MOST_TOKENS, 3 * MOST_TOKENS)),
        prefix_reuse=draw(st.booleans()),
    )


@st.composite
def happenings(draw):
    """Submissions, cancellations and publishes, each at a time of its own."""
    events = [(0.0, "publish", 0)]
    for name in range(draw(st.integers(1, 12))):
        context = draw(st.integers(1, 15))
        job = (name, draw(st.integers(0, 3)), draw(st.integers(0, 5)), context)
        left = draw(st.integers(1, MOST_TOKENS - context))
        begin = draw(TIMES)
        pinned = draw(st.sampled_from([None, None, 0, 1]))
        events.append((begin, "submit", (*job, left, pinned)))
        if draw(st.integers(0, 3)) == 0:
            events.append((begin + draw(DELAYS), "cancel", name))
    publishes = range(1, draw(st.integers(1, 5)))
    events += [(draw(TIMES), "publish", version) for version in publishes]
    return sorted(events, key=lambda event: (event[0], event[1] != "submit", str(event[2])))


def run_engine(costs, events):
    """Drive the engine as the sampler does; return it, its jobs, and when each finished."""
    engine, jobs, done_at, cancelled = Decoder(costs), {}, {}, set()
    events = list(events)
    while True:
        now = min(events[0][0] if events else math.inf, engine.next_event())
        if math.isinf(now):
            return engine, jobs, done_at
        while events and events[0][0] <= now:
            _, what, argument = events.pop(0)
            if what == "submit":
                name, key, priority, context, left, pinned = argument
                jobs[name] = Job(key, priority, context, left, pinned=pinned)
                engine.submit(jobs[name])
            elif what == "publish":
                engine.publish(argument)
            elif argument in jobs and argument not in done_at:
                engine.cancel(jobs[argument])
                cancelled.add(argument)
        names = {id(job): name for name, job in jobs.items()}
        for job in engine.settle(now):
            if job.left == 0 and names[id(job)] not in cancelled | done_at.keys():
                done_at[names[id(job)]] = now


@given(costs=costs(), events=happenings())
def test_closed_forms_equal_single_steps(costs, events):
    engine, jobs, done_at = run_engine(costs, events)
    naive = Naive(
        costs,
        [(at, what, NaiveJob(*arg) if what == "submit" else arg) for at, what, arg in events],
    ).go()
    expected = {name: job.done_at for name, job in naive.jobs.items() if job.done_at is not None}
    assert done_at == pytest.approx(expected)
    for name in [name for name in expected if jobs[name].pinned is None]:
        sampled = by_version(jobs[name], engine.published)
        assert [v for v, tokens in sampled for _ in range(tokens)] == naive.jobs[name].versions
    for name, job in jobs.items():
        assert job.row_seconds == pytest.approx(naive.jobs[name].row_seconds)
    assert engine.preemptions == naive.preemptions
    assert engine.recompute_seconds == pytest.approx(naive.recompute_seconds)
    assert sum(engine.idle_seconds.values()) == pytest.approx(naive.idle_seconds)
    assert engine.pause_seconds == pytest.approx(naive.pause_seconds)


@given(costs=costs(), events=happenings())
def test_every_row_second_is_accounted_for_once(costs, events):
    engine, jobs, _ = run_engine(costs, events)
    held = sum(job.row_seconds for job in jobs.values())
    paused = costs.rows * engine.pause_seconds
    total = held + engine.recompute_seconds + paused + sum(engine.idle_seconds.values())
    assert total == pytest.approx(costs.rows * engine.clock)
