"""Each deadline comes exactly when it is due, however often it was moved before."""

import math

import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.deadlines import Deadlines, move_on_after, of_this_run


class Call:
    """Notes when it is told."""

    def __init__(self):
        self.deadline = self.looked_after = math.inf
        self.told = []

    def move(self, deadlines, deadline):
        self.deadline = deadline
        if deadline < self.looked_after:
            deadlines.watch(self)

    def expire(self):
        self.told.append(trio.current_time())


def run(function):
    return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


moves = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 20) | st.just(math.inf)),
    max_size=25,
)


def expected(moved):
    """When one call is told, from its (time, deadline)s: what a cancel scope would do."""
    told = []
    for (_, deadline), (next_time, _) in zip(moved, [*moved, (math.inf, 0)][1:], strict=True):
        if deadline <= next_time and deadline < math.inf:
            told.append(deadline)
    return told


@settings(max_examples=60)
@given(moves)
def test_whoever_moves_deadlines_each_is_told_exactly_in_time(steps):
    """At a distance of half a second from all moves, so that no order is left to chance."""
    calls = [Call() for _ in range(4)]
    moved = [[] for _ in calls]

    async def main():
        deadlines = of_this_run()
        for wait, who, seconds in steps:
            await trio.sleep(wait)
            now = trio.current_time()
            deadline = now + seconds + 0.5
            moved[who].append((now, deadline))
            calls[who].move(deadlines, deadline)
        await trio.sleep(1000)

    run(main)
    for call, times in zip(calls, moved, strict=True):
        assert call.told == expected(times)


def test_what_was_put_off_is_not_told_early_and_costs_no_entry():
    call = Call()

    async def main():
        deadlines = of_this_run()
        for _ in range(100):
            call.move(deadlines, trio.current_time() + 10.0)
            assert len(deadlines) == 1
            await trio.sleep(1.0)
        assert not call.told
        await trio.sleep(20.0)

    run(main)
    assert call.told == [109.0]


def test_law_bounded_memory_what_has_ended_is_forgotten():
    async def main():
        deadlines = of_this_run()
        live = [Call() for _ in range(100)]
        for call in live:
            call.move(deadlines, 500.0)
        for _ in range(20_000):
            call = Call()
            call.move(deadlines, 1e9)
            call.deadline = math.inf
        assert len(deadlines) < 300
        await trio.sleep(1000.0)
        assert [call.told for call in live] == [[500.0]] * 100

    run(main)


def test_what_was_forgotten_while_it_had_no_deadline_can_have_one_again():
    async def main():
        deadlines = of_this_run()
        call = Call()
        call.move(deadlines, 500.0)
        call.move(deadlines, math.inf)
        for _ in range(200):
            Call().move(deadlines, 1e9)
        call.move(deadlines, 700.0)
        await trio.sleep(1000.0)
        assert call.told == [700.0]

    run(main)


def test_each_run_of_trio_has_its_own():
    async def main():
        assert of_this_run() is of_this_run()
        return of_this_run()

    first, second = run(main), run(main)
    assert isinstance(first, Deadlines)
    assert first is not second


@given(st.lists(st.integers(0, 8), max_size=6), st.integers(0, 20) | st.just(math.inf))
def test_a_scope_is_cut_as_trios_is(sleeps, seconds):
    async def cut_by(make_scope):
        with make_scope(seconds + 0.5) as scope:
            for sleep in sleeps:
                await trio.sleep(sleep)
        return trio.current_time(), scope.cancelled_caught

    async def ours():
        return await cut_by(move_on_after)

    async def trios():
        return await cut_by(trio.move_on_after)

    assert run(ours) == run(trios)
