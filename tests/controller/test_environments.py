"""Environments that fail, hang or are slow cost their own data, and nobody else's time."""

import random
from collections import Counter
from contextvars import ContextVar
from dataclasses import replace

import pytest
import trio

from headrace.envs.base import EnvironmentBroken
from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.errors import PipelineStalled, innermost
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import ROLLOUT, Run, check_laws, failure_of, leaves

CALLS = ["open", "reset", "step", "close"]
LEFT = ContextVar("LEFT", default="nothing")


@pytest.mark.parametrize("where", CALLS)
def test_an_environment_that_always_fails_ends_the_run_after_the_stated_budget(where):
    async def hook(call, task, step):
        if call == where:
            raise OSError("no such host")

    run = Run(hook=hook, config=ControllerConfig(group_failures=5))
    with pytest.raises(BaseExceptionGroup) as caught:
        run.go(deadline_seconds=60)
    (failure,) = leaves(caught.value)  # one, though many groups fail at once
    assert isinstance(innermost(failure.__cause__), PipelineStalled)
    assert "5 groups in a row failed" in str(failure)
    assert "no such host" in str(failure)
    assert run.counts.dropped["env_error"] == 5


@pytest.mark.parametrize("where", CALLS)
def test_an_environment_that_always_hangs_ends_the_run_after_the_stated_budget(where):
    async def hook(call, task, step):
        if call == where:
            await trio.sleep_forever()

    run = Run(hook=hook, config=ControllerConfig(group_failures=9))
    failure = failure_of(run, deadline_seconds=100)  # four groups at a time, for 20 s
    assert "9 groups in a row failed" in str(failure)
    assert f"environment {where} took more than" in str(failure)


def test_groups_that_grow_too_old_are_not_taken_for_failed_ones():
    """A member of group 2 fails, which makes a batch complete, and so group 1 too old."""
    steps = Counter()

    async def hook(call, task, step):
        if call == "step":
            steps[task.id] += 1
            member = steps[task.id]
            await trio.sleep(15.0 if task.id == "1" else member)
            if task.id == "2" and member == 2:
                raise OSError("flaky")

    rollout = replace(ROLLOUT, failure="survivors", min_group_size=1)
    schedule = Schedule(batch_groups=1, max_mean_lag=1, max_lag=1)
    config = ControllerConfig(group_failures=1)
    run = Run(hook=hook, schedule=schedule, rollout=rollout, config=config, replies="").go()
    assert run.counts.dropped["over_age"] >= 1
    assert len(run.updates) == run.steps


def test_conformance_22_one_percent_of_faults_costs_about_one_percent_of_the_data():
    rng = random.Random(1)

    async def hook(call, task, step):
        await trio.sleep(1.0)
        if call == "step" and rng.random() < 0.01:
            raise OSError("flaky")

    run = Run(hook=hook, steps=100).go()
    check_laws(run)
    failed = run.controller.flight.failures["env_error"]
    assert 0 < failed < 0.06 * 100 * 2 * 2  # two steps in each of two members
    assert run.counts.dropped["env_error"] <= failed


def test_conformance_2_a_member_that_never_returns_costs_its_group_only():
    async def hook(call, task, step):
        if call == "step" and task.id in ("1", "4"):
            await trio.sleep_forever()

    schedule = Schedule(batch_groups=2, max_mean_lag=1, max_lag=100)  # too loose to cancel it
    run = Run(hook=hook, steps=30, schedule=schedule).go(deadline_seconds=400)
    check_laws(run)
    assert set(run.controller.flight.failures) == {"env_timeout"}
    assert 2 <= run.controller.flight.failures["env_timeout"] <= 4  # the first ends its group
    assert not {group.task.id for group in run.groups} & {"1", "4"}


def test_conformance_4_one_slow_episode_does_not_slow_the_others():
    def seconds(slow):
        rng = random.Random(0)

        async def hook(call, task, step):
            slow_now = slow and call == "step" and task.id == "2"
            await trio.sleep(1000.0 if slow_now else rng.uniform(0.0, 2.0))

        rollout = replace(ROLLOUT, env_deadline_seconds=10_000.0, max_episodes=64)
        schedule = Schedule(batch_groups=4, max_mean_lag=3, max_lag=100)
        run = Run(hook=hook, steps=20, schedule=schedule, rollout=rollout).go()
        check_laws(run)
        return run.seconds

    assert seconds(slow=True) <= seconds(slow=False) * 1.25


def test_a_group_too_old_is_cancelled_and_its_task_issued_again():
    visits = Counter()

    async def hook(call, task, step):
        if call == "reset":
            visits[task.id] += 1
        slow = call == "step" and task.id == "1" and visits["1"] <= 2
        await trio.sleep(500.0 if slow else 1.0)

    schedule = Schedule(batch_groups=1, max_mean_lag=1, max_lag=2)
    rollout = replace(ROLLOUT, env_deadline_seconds=1000.0)
    run = Run(hook=hook, schedule=schedule, steps=10, rollout=rollout).go()
    check_laws(run)
    assert run.counts.dropped["over_age"] >= 1
    assert run.counts.reissued >= 1
    assert visits["1"] == 4  # two members, twice
    assert "1" in {group.task.id for group in run.groups}


def test_a_policy_with_nothing_left_to_learn_ends_the_run_when_equal_rewards_are_dropped():
    schedule = Schedule(batch_groups=2, equal_rewards="drop")
    run = Run(schedule=schedule, config=ControllerConfig(group_failures=2))
    run.reward = lambda task, seed: 1.0
    assert "20 groups in a row were dropped" in str(failure_of(run))


def test_an_environment_that_says_it_is_broken_ends_the_run_at_once():
    async def hook(call, task, step):
        if call == "reset" and task.id == "3":
            raise EnvironmentBroken("no license")

    failure = failure_of(Run(hook=hook), deadline_seconds=5)
    assert "EnvironmentBroken: no license" in str(failure)


def test_a_result_that_comes_after_its_group_was_dropped_is_ignored_and_counted():
    """One member is about to close, well, when the other one fails."""
    calls = Counter()

    async def hook(call, task, step):
        calls[call, task and task.id] += 1
        if task is not None and task.id == "1":
            first = calls[call, "1"] == 1
            if call == "step" and not first:
                await trio.sleep(2.0)
                raise OSError("flaky")
            if call == "close" and first:
                await trio.sleep(5.0)

    rollout = replace(ROLLOUT, failure="drop")
    run = Run(hook=hook, rollout=rollout, replies="", steps=12).go()
    check_laws(run)
    assert run.counts.ignored == 1
    assert run.counts.dropped["env_error"] == 1
    assert "1" not in {group.task.id for group in run.groups}


def test_what_an_episode_leaves_in_a_context_variable_no_other_episode_sees():
    """Also not one that begins at its end, as there is room for it then."""
    found = set()

    async def hook(call, task, step):
        if call == "open":
            found.add(LEFT.get())
        LEFT.set("something")
        await trio.lowlevel.checkpoint()

    Run(hook=hook, rollout=replace(ROLLOUT, max_episodes=2)).go()
    assert found == {"nothing"}
