"""Rewards under the controller: what can't be scored is tried again, and too much ends the run."""

import random
from dataclasses import replace
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Reward
from headrace.envs.rewards import Scorer
from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import ROLLOUT, SCHEDULE, Run, check_laws, failure_of

Here = partial(Reward, in_loop=True)  # under the virtual clock


def scored_run(*rewards, **options):
    run = Run(**options)
    return run.replace(rollout=replace(run.stages.rollout, scorer=Scorer(rewards)))


def faulty(share, *, kind="raise", seed=0):
    """Return a reward function that fails in so many of its calls."""
    rng = random.Random(seed)

    async def function(episode):
        await trio.sleep(rng.random())
        if rng.random() < share:
            if kind == "hang":
                await trio.sleep_forever()
            if kind == "none":
                return None
            raise OSError("no judge")
        return float(len(episode.answer))

    return function


@pytest.mark.parametrize("kind", ["raise", "hang", "none"])
def test_a_run_survives_one_failure_in_twenty(kind):
    rollout = replace(ROLLOUT, max_retries=2)
    run = scored_run(Here("judge", faulty(0.05, kind=kind)), rollout=rollout, steps=20).go()
    check_laws(run)
    failures = run.controller.flight.failures
    assert set(failures) == {"reward_timeout" if kind == "hang" else "reward_error"}
    trajectories = [each for group in run.groups for each in group.trajectories]
    assert all(each.rewards.keys() == {"env", "judge"} for each in trajectories)
    assert all(each.rewards["judge"] == len(each.messages[-1].content) for each in trajectories)


@pytest.mark.parametrize("kind", ["raise", "hang", "none"])
def test_a_reward_that_always_fails_ends_the_run_and_is_named(kind):
    run = scored_run(Here("judge", faulty(1.0, kind=kind)), config=ControllerConfig())
    failure = failure_of(run)
    assert "the reward 'judge' couldn't be computed" in str(failure)


def test_a_high_share_of_failures_ends_a_run_that_would_go_on():
    rollout = replace(ROLLOUT, max_retries=5)
    options = {"rollout": rollout, "steps": 40}
    reward = Here("judge", faulty(0.5))
    failure = failure_of(scored_run(reward, **options))
    assert "of the last 64 episodes couldn't be scored, at most a share of 0.25 may" in str(
        failure
    )
    assert "'judge'" in str(failure)
    lenient = ControllerConfig(unscored_share=1.0)
    check_laws(scored_run(Here("judge", faulty(0.5)), **options, config=lenient).go())


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0.0, 0.3), seed=st.integers(0, 99), deterministic=st.booleans())
def test_members_that_are_compared_never_deadlock_a_run(share, seed, deterministic):
    rng = random.Random(seed)

    async def compared(episodes):
        await trio.sleep(5 * rng.random())
        return [None if rng.random() < share else float(place) for place in range(len(episodes))]

    schedule = replace(SCHEDULE, max_lag=1, deterministic=True) if deterministic else SCHEDULE
    run = scored_run(
        Here("compared", compared, of="group"),
        rollout=replace(ROLLOUT, max_retries=8),
        schedule=schedule,
        config=ControllerConfig(unscored_share=1.0),
        steps=6,
    ).go()
    check_laws(run)
    for group in run.groups:
        assert [each.rewards["compared"] for each in group.trajectories] == [0.0, 1.0]


def test_groups_with_few_survivors_are_compared_and_stragglers_of_old_groups_let_go():
    async def compared(episodes):
        return [float(len(episodes))] * len(episodes)

    async def hook(call, task, step):
        if call == "step":
            await trio.sleep(100.0 if int(task.id) % 5 == 4 and step == 0 else 1.0)

    rollout = replace(
        ROLLOUT, failure="survivors", min_group_size=1, env_deadline_seconds=30.0, max_episodes=8
    )
    run = scored_run(
        Here("compared", compared, of="group"),
        rollout=rollout,
        hook=hook,
        schedule=Schedule(batch_groups=1, max_mean_lag=1, max_lag=1),
        steps=8,
    ).go()
    for group in run.groups:
        size = len(group.trajectories)
        assert {each.rewards["compared"] for each in group.trajectories} == {float(size)}
