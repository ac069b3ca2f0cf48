"""Lockstep: which group is in which batch, of which version, doesn't depend on timing."""

import random
from dataclasses import replace

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.rollout.group import identify
from tests.controller.harness import ROLLOUT, Run
from tests.controller.relay import lockstep, transcript
from tests.fakes.policy import FakePolicy


def versions(group):
    return {v for t in group.trajectories for v in t.policy_versions[t.loss_mask].tolist()}


@pytest.mark.parametrize(
    ("eta", "every", "expected"),
    [  # versions of the batches 0, 1, 2, …, found by hand
        (0, 1, [0, 1, 2, 3, 4, 5, 6]),
        (1, 1, [0, 0, 1, 2, 3, 4, 5]),
        (2, 1, [0, 0, 0, 1, 2, 3, 4]),
        (3, 1, [0, 0, 0, 0, 1, 2, 3]),
        (1, 2, [0, 0, 2, 2, 4, 4, 6]),
        (2, 2, [0, 0, 0, 2, 2, 4, 4]),
        (3, 2, [0, 0, 0, 0, 2, 2, 4]),
        (2, 3, [0, 0, 0, 3, 3, 3, 6]),
        (3, 3, [0, 0, 0, 0, 3, 3, 3]),
    ],
)
def test_law_4_batches_have_exactly_these_versions(eta, every, expected):
    rng = random.Random(eta * 10 + every)

    async def hook(call, task, step):
        await trio.sleep(rng.expovariate(1.0))

    run = Run(hook=hook, schedule=lockstep(eta, every), steps=7).go()
    assert [update.batch for update in run.updates] == list(range(7))
    for update, version in zip(run.updates, expected, strict=True):
        assert [group.index for group in update.groups] == [2 * update.batch, 2 * update.batch + 1]
        assert [versions(group) for group in update.groups] == [{version}, {version}]
    assert run.counts.lag_max == max(batch - v for batch, v in enumerate(expected)) <= eta
    assert run.counts.dropped.keys() <= {"run_ended"}


def timed(seed, *, schedule):
    """A run with the latencies and failures of a seed; those that fail are always the same."""
    rng = random.Random(seed)

    async def hook(call, task, step):
        await trio.sleep(rng.choice([0.0, 0.5, 1.0, rng.paretovariate(1.2)]))
        if call == "step" and task.id in ("3", "6"):
            raise OSError("always")

    policy = FakePolicy(
        sample_seconds=lambda request: rng.expovariate(1.0),
        update_seconds=rng.choice([0.0, 1.0, 20.0]),
        publish_seconds=rng.choice([0.0, 1.0, 20.0]),
        rows=rng.choice([1, 3, 64]),
    )
    concurrency = rng.choice(["auto", "fixed"])
    rollout = replace(  # what misses a deadline depends on timing, of course
        ROLLOUT,
        max_episodes=rng.choice([2, 5, 32]),
        env_deadline_seconds=1e6,
        close_deadline_seconds=1e6,
        sample_deadline_seconds=1e6,
    )
    return Run(
        policy=policy,
        hook=hook,
        schedule=schedule,
        rollout=rollout,
        config=ControllerConfig(concurrency=concurrency),
        steps=5,
    ).go(deadline_seconds=1e7)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32), eta=st.integers(0, 2), scheduling=st.random_module())
def test_what_is_trained_does_not_depend_on_latencies_or_on_trios_order(seed, eta, scheduling):
    schedule = lockstep(eta, min(2, eta + 1))
    expected = transcript(timed(0, schedule=schedule))
    assert transcript(timed(seed, schedule=schedule)) == expected
    assert [line[2] for line in expected] == ["0", "1", "2", "4", "5", "7", "8", "9"]


def test_generation_and_learning_overlap_with_a_lag_of_1():
    def seconds(eta):
        async def hook(call, task, step):
            await trio.sleep(2.0)

        policy = FakePolicy(update_seconds=10.0)
        return Run(policy=policy, hook=hook, schedule=lockstep(eta), steps=10).go().seconds

    alone = 2 + 2 + 1 + 2 + 1 + 2 + 2  # open, reset, two turns with their answers, close
    assert seconds(0) == pytest.approx(10 * (alone + 10), abs=10 * 2 + 3)  # closing overlaps
    assert seconds(1) <= 0.65 * seconds(0)


def test_failed_groups_leave_their_places_empty_and_the_run_goes_on():
    async def hook(call, task, step):
        if call == "reset" and task.id in ("1", "4"):
            raise OSError("no such host")

    run = Run(hook=hook, schedule=lockstep(1), steps=4).go()
    indexes = [[group.index for group in update.groups] for update in run.updates]
    assert indexes == [[0], [2, 3], [5], [6, 7]]
    assert run.counts.dropped["env_error"] == 2


@pytest.mark.parametrize("every", [1, 2])
def test_a_batch_whose_groups_have_all_failed_is_a_version_without_an_update(every):
    async def hook(call, task, step):
        if call == "reset" and task.id in ("2", "3"):
            raise OSError("no such host")

    run = Run(hook=hook, schedule=lockstep(1, every), steps=4).go()
    assert [update.batch for update in run.updates] == [0, 2, 3]
    assert run.policy.updates == 3
    assert run.policy.versions == [*range(0, 5, every)]


def test_survivors_are_in_the_order_of_the_members():
    rng = random.Random(0)

    async def hook(call, task, step):
        await trio.sleep(rng.uniform(0.0, 9.0))
        if call == "reset" and rng.random() < 0.2:
            raise OSError("flaky")

    rollout = replace(ROLLOUT, group_size=4, failure="survivors", min_group_size=1)
    run = Run(hook=hook, schedule=lockstep(1), rollout=rollout, steps=6)
    run.reward = lambda task, seed: float(seed % 1000)
    run.go()
    assert {len(group.trajectories) for group in run.groups} > {4}
    for group in run.groups:
        rewards = [trajectory.reward for trajectory in group.trajectories]
        members = [identify(0, index=group.index, member=member) for member in range(4)]
        in_order = [float(member.env_seed % 1000) for member in members]
        assert rewards == [reward for reward in in_order if reward in rewards]


@pytest.mark.parametrize(("eta", "every"), [(0, 1), (1, 1), (3, 1), (3, 2), (2, 3)])
def test_no_more_versions_are_held_than_the_theory_says(eta, every):
    most = []

    async def hook(call, detail):
        most.append(sum(count > 0 for count in run.policy.held.values()))

    rng = random.Random(1)

    async def env(call, task, step):
        await trio.sleep(rng.paretovariate(1.1))

    policy = FakePolicy(hook=hook)
    run = Run(hook=env, policy=policy, schedule=lockstep(eta, every), steps=9)
    run.go()
    assert max(most) <= eta // every + 1
