"""Whole runs without faults: updates, bounds, caps, bookkeeping."""

import gc
import threading
from collections import deque
from dataclasses import replace

import pytest

from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import ROLLOUT, SCHEDULE, Run, check_laws


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


class Sizes:
    """Takes updates, keeps none, and notes now and then how much there is."""

    def __init__(self, run):
        self.run = run
        self.held = []
        self.threads = []
        self.objects = []

    def append(self, update):
        parts = {**vars(self.run.controller), **vars(self.run.controller.flight)}
        containers = [part for part in parts.values() if isinstance(part, dict | list | deque)]
        self.held.append(max(len(container) for container in containers))
        if update.batch % 50 == 49:
            self.run.books.heard.clear()  # what the fakes keep is theirs
            self.run.policy.requests.clear()
            gc.collect()
            self.threads.append(threading.active_count())
            self.objects.append(len(gc.get_objects()))


@pytest.mark.parametrize("deterministic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_law_19_500_steps_grow_neither_memory_nor_threads(deterministic):
    run = Run(steps=500, schedule=replace(SCHEDULE, deterministic=deterministic))
    run.updates = sizes = Sizes(run)
    run.go()
    assert len(sizes.held) == 500
    assert 1 <= max(sizes.held) <= 8
    # An idle thread that an earlier test left to trio may end meanwhile.
    assert sizes.threads == sorted(sizes.threads, reverse=True)
    assert max(sizes.objects[5:]) < max(sizes.objects[:5]) + 300, sizes.objects
