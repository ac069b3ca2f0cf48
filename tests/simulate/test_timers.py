"""Virtual time: it jumps to what is due, never past a deadline of trio's, and is reproducible."""

import random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import innermost
from headrace.pipeline.simulate.timers import Timers, run_virtually, seeded_scheduling


@given(delays=st.lists(st.integers(0, 40).map(lambda quarters: quarters / 4), max_size=12))
def test_sleepers_wake_at_their_own_times_and_in_order(delays):
    woken = []

    async def sleeper(timers, delay):
        await timers.sleep(delay)
        assert trio.current_time() == pytest.approx(timers.now)
        woken.append((timers.now, delay))

    async def main(timers):
        async with trio.open_nursery() as nursery:
            for delay in delays:
                nursery.start_soon(sleeper, timers, delay)

    run_virtually(main, seed=0)
    assert woken == sorted(woken)
    assert [at for at, _ in woken] == sorted(delays)
    assert all(at == delay for at, delay in woken)


def test_what_is_slept_in_pieces_adds_up():
    async def main(timers):
        for _ in range(1000):
            await timers.sleep(0.1)
        return timers.now

    assert run_virtually(main, seed=0) == pytest.approx(100.0)


def test_trio_deadlines_come_in_time_between_sleepers():
    seen = []

    async def main(timers):
        with trio.move_on_after(1.5) as scope:
            await timers.sleep(2.0)
        seen.append((timers.now, scope.cancelled_caught))
        await trio.sleep(0.25)
        seen.append(timers.now)
        await timers.sleep(1.0)
        seen.append(timers.now)

    run_virtually(main, seed=0)
    assert seen == [(1.5, True), 1.75, 2.75]


def test_a_cancelled_sleeper_is_forgotten_and_moves_no_time():
    async def main(timers):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.sleep, 100.0)
            await timers.sleep(1.0)
            nursery.cancel_scope.cancel()
        await timers.sleep(1.0)
        return timers.now

    assert run_virtually(main, seed=0) == 2.0


@given(
    sleeps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9).map(lambda at: at + 0.5))),
)
def test_cancelled_sleepers_among_others_wake_nobody_and_are_forgotten(sleeps):
    """Each sleeps for so long, and is cancelled at a time at which nobody wakes."""
    woken, expected = [], [seconds for seconds, cancelled in sleeps if seconds < cancelled]

    async def sleeper(timers, seconds, cancelled):
        with trio.CancelScope(deadline=cancelled):
            await timers.sleep(seconds)
            assert timers.now == seconds
            woken.append(seconds)

    async def main(timers):
        async with trio.open_nursery() as nursery:
            for seconds, cancelled in sleeps:
                nursery.start_soon(sleeper, timers, seconds, cancelled)
        await timers.sleep(100.0)  # past all of them
        return timers

    timers = run_virtually(main, seed=0)
    assert woken == sorted(expected)
    assert not timers._due
    assert not timers._cancelled


def test_a_sleep_of_no_time_lets_a_cancellation_in():
    async def main(timers):
        with trio.CancelScope() as scope:
            scope.cancel()
            await timers.sleep(0.0)
        return scope.cancelled_caught

    assert run_virtually(main, seed=0)


def test_watchers_see_all_time_and_whole_instants():
    passed, instants = [], []

    async def main(timers):
        timers.on_advance(passed.append)
        timers.at_instant_end(lambda: instants.append(timers.now))
        timers.stop_at(0.5)
        await timers.sleep(2.0)
        await timers.sleep(1.0)

    run_virtually(main, seed=0)
    assert sum(passed) == 3.0
    assert sorted(set(instants)) == [0.0, 0.5, 2.0]


def test_who_is_woken_at_the_end_of_an_instant_acts_in_it():
    times = []

    async def main(timers):
        event = trio.Event()

        def settle():
            due = timers.now >= 1.0 and not event.is_set()
            if due:
                event.set()
            return due

        timers.at_instant_end(settle)
        timers.stop_at(1.0)
        timers.stop_at(5.0)
        await event.wait()
        times.append(timers.now)

    run_virtually(main, seed=0)
    assert times == [1.0]


def test_conformance_a_deadlock_is_an_error_and_no_hang():
    async def main(timers):
        await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtually(main, seed=0)
    assert "deadlocked" in str(innermost(caught.value))


def test_a_trio_without_the_switch_is_an_error_that_says_so():
    for module in ("trio", "trio.no_such_part"):
        with (
            pytest.raises(RuntimeError, match="can't order tasks by a seed"),
            seeded_scheduling(0, module=module),
        ):
            pass


def order_of_tasks(seed):
    order = []

    async def task(name):
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            order.append(name)

    async def main(timers: Timers):
        async with trio.open_nursery() as nursery:
            for name in range(6):
                nursery.start_soon(task, name)

    run_virtually(main, seed=seed)
    return order


def test_the_seed_decides_the_order_of_tasks_and_nothing_else_does():
    orders = {}
    for seed in (1, 2, 3):
        orders[seed] = order_of_tasks(seed)
        random.random()
    assert len({tuple(order) for order in orders.values()}) > 1
    assert all(order_of_tasks(seed) == order for seed, order in orders.items())
