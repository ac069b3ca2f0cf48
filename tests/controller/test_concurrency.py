"""As many episodes at once as the sampler can use; what ends is replaced at once, oldest first."""

import random
from dataclasses import replace

import pytest
import trio

from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.controller_state import Saves
from headrace.pipeline.groups import ledger
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.rollout.group import identify
from tests.controller.harness import ROLLOUT, Run, check_laws
from tests.fakes.policy import FakePolicy

# Admits more than ever runs, and learns faster than anything is sampled.
LOOSE = Schedule(batch_groups=8, max_mean_lag=60, max_lag=200)
AUTO = ControllerConfig(concurrency="auto")
FIXED = ControllerConfig(concurrency="fixed")


def run_with(policy, *, env_seconds=0.0, config=AUTO, **rollout):
    """A run that goes on for long, with an environment of random latency in each step."""
    rng = random.Random(0)

    async def hook(call, task, step):
        if call == "step":
            await trio.sleep(rng.uniform(0.0, 2 * env_seconds))

    rollout = replace(ROLLOUT, **{"max_episodes": 64, **rollout})
    return Run(
        policy=policy, hook=hook, schedule=LOOSE, rollout=rollout, config=config, steps=10_000
    )


def policy_with(rows, **more):
    rng = random.Random(1)
    return FakePolicy(
        rows=rows,
        sample_seconds=lambda request: rng.uniform(0.5, 1.5),
        update_seconds=0.01,
        **more,
    )


def in_flight(run, *, seconds):
    """Run so long; return the number of episodes in flight after each second."""
    seen = []

    async def look(run, nursery):
        await trio.sleep(0.5)
        for _ in range(seconds):
            seen.append(run.controller.flight.episodes)
            await trio.sleep(1.0)
        nursery.cancel_scope.cancel()

    run.go(beside=look)
    return seen


def test_it_grows_to_the_cap_while_rows_are_idle():
    """An episode spends a tenth of its time in the sampler: 8 rows could serve 80."""
    seen = in_flight(run_with(policy_with(8), env_seconds=9.0, max_episodes=40), seconds=200)
    assert seen[0] == 16  # two a row
    assert max(seen) == 40


def test_it_settles_where_requests_queue_a_little():
    """Episodes that do nothing but sample: those beyond the rows only wait."""
    seen = in_flight(run_with(policy_with(8)), seconds=150)
    assert all(8 <= number <= 24 for number in seen[50:])


def test_it_shrinks_when_requests_lose_their_rows_and_grows_again():
    async def hook(call, detail):
        if call == "request" and trio.current_time() < 100.0:
            policy.preemptions += 1

    policy = policy_with(8, hook=hook)
    seen = in_flight(run_with(policy, env_seconds=4.0, max_episodes=32), seconds=400)
    assert max(seen[80:100]) < 8
    assert max(seen[300:]) > 24


@pytest.mark.parametrize("size", [1, 2, 5])
def test_it_is_never_below_a_group(size):
    async def hook(call, detail):
        policy.preemptions += call == "request"

    policy = policy_with(1, hook=hook)
    run = run_with(policy, group_size=size)
    seen = in_flight(run, seconds=300)
    assert size - 1 <= max(seen[200:]) <= size
    assert {len(group.trajectories) for group in run.groups} == {size}


def test_fixed_concurrency_does_not_look_at_the_load():
    run = run_with(policy_with(2), config=FIXED)
    assert min(in_flight(run, seconds=40)) >= 63


async def quick_and_slow(call, task, step):
    if call == "step":
        slow = int(task.id) % 5 == 0
        await trio.sleep(15.0 if slow else 1.0 + int(task.id) % 2)


@pytest.mark.parametrize("deterministic", [False, True])
def test_conformance_5_what_ends_is_replaced_at_once(deterministic):
    """At each tick: after publishes and checkpoints, during evaluations, after many cancels."""

    async def evaluate(version, flight):
        await trio.sleep(3.0)

    async def save(state):
        saved.append(state.ledger.committed)
        await trio.sleep(3.0)

    async def look(run, nursery):
        while run.controller.ledger.committed < run.steps:
            await trio.testing.wait_all_tasks_blocked()
            if ledger.may_admit(run.controller.ledger):
                seen.append(run.controller.flight.episodes)
            await trio.sleep(0.25)

    seen, saved = [], []
    run = Run(
        hook=quick_and_slow,
        schedule=Schedule(
            batch_groups=2, max_mean_lag=5, max_lag=5, max_reissues=9, deterministic=deterministic
        ),
        rollout=replace(ROLLOUT, max_episodes=12),
        config=FIXED,
        steps=40,
        evaluate_every=1,
    )
    run.replace(evaluate=evaluate, saves=Saves(4, save)).go(beside=look)
    assert saved == [*range(4, 41, 4)]
    assert len(seen) > 100
    assert min(seen) > 12 - 2  # for a whole group there is no room
    if not deterministic:
        assert run.counts.dropped["over_age"] >= 3


def test_requests_carry_their_groups_age_so_that_the_oldest_are_served_first():
    policy = FakePolicy(rows=1)
    schedule = Schedule(batch_groups=4, max_mean_lag=3, max_lag=9)
    run = Run(policy=policy, schedule=schedule, config=FIXED).go()
    check_laws(run)
    keys = {
        identify(0, index=index, member=member).key: index
        for index in range(100)
        for member in range(2)
    }
    assert all(keys[request.key] == request.priority for request in policy.requests)
