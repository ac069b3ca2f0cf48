"""Trio's order of tasks is part of a hypothesis example: it replays, and it shrinks.

Trio ships a plugin for hypothesis (an entry point of its distribution): once hypothesis is
imported, trio takes the order of its tasks from a generator that hypothesis seeds before each
example. The strategy `random_module` makes that seed a part of the example.
"""

import importlib.metadata

import pytest
import trio
import trio.testing
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from tests.controller.harness import Run


def order_of(tasks):
    """The order in which so many tasks come through one checkpoint."""
    order = []

    async def one(number):
        await trio.lowlevel.checkpoint()
        order.append(number)

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(one, number)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return tuple(order)


def orders_by_seed(number):
    """What hypothesis draws from one seed of its own: trio's orders, by the drawn seed."""
    found = {}

    @seed(number)
    @settings(max_examples=20)
    @given(scheduling=st.random_module())
    def run(scheduling):
        found[scheduling.seed] = order_of(8)

    run()
    return found


def test_trio_has_the_plugin_and_hypothesis_loads_it():
    (plugin,) = [
        entry
        for entry in importlib.metadata.entry_points(group="hypothesis")
        if entry.name == "trio"
    ]
    assert plugin.value.startswith("trio.")


def test_the_same_example_gives_the_same_order():
    one, other = orders_by_seed(1), orders_by_seed(1)
    assert one == other
    assert len(set(one.values())) > 5  # and not always the same


def test_a_planted_race_shrinks_to_two_tasks():
    failing = []

    @settings(max_examples=200, phases=[Phase.generate, Phase.shrink])
    @given(tasks=st.integers(1, 30), scheduling=st.random_module())
    def in_the_order_of_their_start(tasks, scheduling):
        in_order = order_of(tasks) == tuple(range(tasks))
        if not in_order:
            failing.append(tasks)
        assert in_order

    with pytest.raises(AssertionError):
        in_the_order_of_their_start()
    assert failing[-1] == 2


def events_of_a_run():
    """All that a whole run asks of its fakes, in order."""
    events = []

    async def hook(call, task, step):
        events.append((trio.current_time(), call, task and task.id))
        await trio.lowlevel.checkpoint()

    run = Run(hook=hook, steps=2).go()
    return [*events, *(request.key for request in run.policy.requests)]


def test_the_same_example_gives_the_same_run_of_the_controller():
    found = {}

    def both_passes():
        @seed(3)
        @settings(max_examples=5)
        @given(scheduling=st.random_module())
        def run(scheduling):
            events = events_of_a_run()
            assert found.setdefault(scheduling.seed, events) == events

        run()

    both_passes()
    seen = dict(found)
    both_passes()
    assert found == seen
    assert len({str(events) for events in seen.values()}) > 1
