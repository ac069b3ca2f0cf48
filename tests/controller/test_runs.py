"""Whole runs without faults: updates, bounds, caps, bookkeeping."""

from collections import deque
from dataclasses import replace

from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import ROLLOUT, Run, check_laws


def test_a_run_makes_its_updates_and_stops():
    run = Run().go()
    check_laws(run)
    assert run.policy.updates == run.policy.version == 4


def test_a_run_of_no_steps_leaves_nothing():
    run = Run(steps=0).go()
    assert run.updates == []
    assert run.counts.admitted == sum(run.counts.dropped.values())


def test_conformance_9_with_a_mean_lag_of_0_training_is_exactly_on_policy():
    run = Run(schedule=Schedule(batch_groups=3, max_mean_lag=0, max_lag=0), steps=5).go()
    check_laws(run)
    for update in run.updates:
        for group in update.groups:
            assert group.oldest_version == group.newest_version == update.batch


def test_the_last_update_is_published_whatever_publish_every():
    schedule = Schedule(batch_groups=2, max_mean_lag=2, max_lag=4, publish_every=3)
    run = Run(schedule=schedule, steps=5).go()
    assert run.policy.versions == [0, 3, 5]


def test_episodes_in_flight_stay_within_their_cap():
    highest = []
    schedule = Schedule(batch_groups=4, max_mean_lag=4, max_lag=9)
    rollout = replace(ROLLOUT, max_episodes=7)
    run = Run(schedule=schedule, steps=6, rollout=rollout)

    async def look(call, task, step):
        highest.append(run.books.opened - run.books.closed)

    run.hook = look
    run.go()
    assert max(highest) == 6  # three groups of two


def test_law_19_bookkeeping_stays_bounded():
    run = Run(steps=200).go()
    controller = vars(run.controller)
    sizes = {
        name: len(value)
        for name, value in controller.items()
        if isinstance(value, dict | list | set | deque)
    }
    assert max(sizes.values()) <= 8, sizes
