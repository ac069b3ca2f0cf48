"""The controller with fakes under a virtual clock: bounds, faults, cancellation, liveness."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.algorithms.advantages import group_relative
from headrace.pipeline.controller import Controller, ControllerConfig, Stages
from headrace.pipeline.errors import PipelineStalled, StageFailed
from headrace.pipeline.groups import ledger
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from tests.fakes.env import Books, FakeEnv, nothing
from tests.fakes.policy import FakePolicy

RENDERER = CharacterRenderer(TextConfig("0123456789"))
ROLLOUT = RolloutConfig(
    group_size=2, max_turns=3, max_turn_tokens=2, max_tokens=32, max_episodes=16,
    env_deadline_seconds=20.0, max_retries=0,
)  # fmt: skip


class Numbered:
    """Tasks 0, 1, 2, …"""

    def __init__(self):
        self._numbers = itertools.count()

    def next(self):
        return Task(str(next(self._numbers)))


def pack(groups, batch):
    return form_batch(groups, group_relative, batch=batch, group_size=2, shape=(4, 8, 32))


class Run:
    """One run of the controller under the mock clock, and what was seen of it."""

    def __init__(
        self, *, policy=None, hook=nothing, schedule=None, rollout=ROLLOUT, steps=4, replies="1",
        config=None,
    ):  # fmt: skip
        self.books = Books()
        self.reward = lambda task, seed: float(seed % 2)
        self.updates = []
        self.policy = policy or FakePolicy()
        self.stages = Stages(
            tasks=Numbered(),
            rollout=Rollout(
                lambda: FakeEnv(self.books, replies, hook, self.reward),
                RENDERER,
                self.policy.sample,
                rollout,
            ),
            pack=pack,
            learner=self.policy,
            publish=self.policy.publish,
            hold=self.policy.hold,
            load=self.policy.load,
        )
        self.schedule = schedule or Schedule(batch_groups=2, max_mean_lag=1, max_lag=3)
        self.steps = steps
        self.config = config or ControllerConfig(group_failures=8)
        self.controller = None
        self.seconds = 0.0

    def go(self, *, deadline_seconds=10_000):
        async def main():
            self.controller = Controller(
                self.stages,
                self.schedule,
                self.config,
                steps=self.steps,
                seed=0,
                on_update=self.updates.append,
            )
            with trio.fail_after(deadline_seconds):
                await self.controller.run()
            self.seconds = trio.current_time()

        try:
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        finally:
            assert self.books.balanced
        return self


def check_laws(run: Run):
    """Laws 3, 4 and 6 on what came out, by arithmetic of its own."""
    size = run.schedule.batch_groups
    assert [update.batch for update in run.updates] == list(range(run.steps))
    groups = [group for update in run.updates for group in update.groups]
    assert len({group.index for group in groups}) == run.steps * size
    lags = [
        update.batch - min(t.policy_versions[t.loss_mask].min() for t in group.trajectories)
        for update in run.updates
        for group in update.groups
    ]
    assert max(lags) <= run.schedule.max_lag
    assert sum(lags) <= run.schedule.max_mean_lag * size * max(0, run.steps - 1)
    assert min(lags) >= 0
    assert all(len(group.trajectories) == 2 for group in groups)
    counts = ledger.counts(run.controller.ledger)
    assert (counts.running, counts.ready, counts.in_batch) == (0, 0, 0)
    assert counts.admitted == counts.consumed + sum(counts.dropped.values())
    assert counts.lag_max == max(lags)


def test_a_run_makes_its_updates_and_stops():
    run = Run().go()
    check_laws(run)
    assert run.policy.updates == run.policy.version == 4


def test_conformance_9_with_a_mean_lag_of_0_training_is_exactly_on_policy():
    run = Run(schedule=Schedule(batch_groups=3, max_mean_lag=0, max_lag=0), steps=5).go()
    check_laws(run)
    for update in run.updates:
        for group in update.groups:
            assert group.oldest_version == group.newest_version == update.batch


@given(
    seed=st.integers(0, 2**32),
    eta=st.integers(0, 3),
    slack=st.integers(0, 4),
    batch_groups=st.integers(1, 4),
    publish_every=st.integers(1, 3),
    failing=st.sampled_from([0.0, 0.1, 0.4]),
    equal_rewards=st.sampled_from(["keep", "drop"]),
)
def test_laws_3_to_6_under_arbitrary_latencies_and_faults(
    seed, eta, slack, batch_groups, publish_every, failing, equal_rewards
):
    rng = random.Random(seed)

    async def hook(call, task, step):
        await trio.sleep(rng.paretovariate(1.1) if rng.random() < 0.5 else 0.0)
        if rng.random() < failing / 4:
            raise OSError("flaky")

    policy = FakePolicy(
        sample_seconds=lambda request: rng.expovariate(1.0),
        update_seconds=rng.choice([0.0, 0.5, 5.0]),
        publish_seconds=rng.choice([0.0, 0.5, 5.0]),
    )
    schedule = Schedule(
        batch_groups=batch_groups,
        max_mean_lag=max(eta, publish_every - 1),
        max_lag=max(eta, publish_every - 1) + slack,
        publish_every=publish_every,
        equal_rewards=equal_rewards,
    )
    config = ControllerConfig(group_failures=10**6)
    check_laws(Run(policy=policy, hook=hook, schedule=schedule, steps=5, config=config).go())


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("tasks", "prompts"),
        ("pack", "batching"),
        ("update", "learner"),
        ("publish", "weight_sync"),
        ("observer", "observe"),
    ],
)
def test_conformance_1_a_stage_that_raises_ends_the_run_with_its_name(stage, name):
    run = Run()

    def broken(*arguments):
        raise OSError("disk full")

    async def broken_later(*arguments):
        broken()

    if stage == "tasks":
        run.stages.tasks.next = broken
    elif stage == "update":
        run.policy.update = broken_later
    elif stage == "observer":
        run.updates = type("Broken", (), {"append": staticmethod(broken)})
    else:
        with_fault = {"pack": broken, "publish": broken_later}[stage]
        run.stages = replace(run.stages, **{stage: with_fault})
    with pytest.raises(BaseExceptionGroup) as caught:
        run.go(deadline_seconds=60)
    (failure,) = leaves(caught.value)
    assert isinstance(failure, StageFailed)
    assert failure.stage == name
    assert "disk full" in str(failure)


def leaves(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_conformance_3_an_error_outside_exception_ends_the_run(error):
    async def hook(call, task, step):
        if call == "step" and task.id == "3":
            raise error("the end")

    with pytest.raises(BaseExceptionGroup) as caught:
        Run(hook=hook).go(deadline_seconds=60)
    assert error in [type(leaf) for leaf in leaves(caught.value)]


def test_an_environment_that_always_fails_ends_the_run_after_the_stated_budget():
    async def hook(call, task, step):
        if call == "reset":
            raise OSError("no such host")

    run = Run(hook=hook, config=ControllerConfig(group_failures=5))
    with pytest.raises(BaseExceptionGroup) as caught:
        run.go(deadline_seconds=60)
    (failure,) = leaves(caught.value)
    assert isinstance(failure, StageFailed)
    assert {type(leaf) for leaf in leaves(failure.__cause__)} == {PipelineStalled}
    assert "groups in a row failed" in str(failure)
    assert "no such host" in str(failure)


def test_a_policy_with_nothing_left_to_learn_ends_the_run_when_equal_rewards_are_dropped():
    schedule = Schedule(batch_groups=2, equal_rewards="drop")
    run = Run(schedule=schedule, config=ControllerConfig(group_failures=2))
    run.reward = lambda task, seed: 1.0
    with pytest.raises(BaseExceptionGroup) as caught:
        run.go(deadline_seconds=1000)
    (failure,) = leaves(caught.value)
    assert "all their rewards were equal" in str(failure)


def test_the_last_update_is_published_whatever_publish_every():
    schedule = Schedule(batch_groups=2, max_mean_lag=2, max_lag=4, publish_every=3)
    run = Run(schedule=schedule, steps=5).go()
    assert run.policy.version == 5


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
    assert ledger.counts(run.controller.ledger).dropped["env_error"] <= failed


def test_conformance_2_a_member_that_never_returns_costs_its_group_only():
    async def hook(call, task, step):
        if call == "step" and task.id in ("1", "4"):
            await trio.sleep_forever()

    schedule = Schedule(batch_groups=2, max_mean_lag=1, max_lag=100)  # too loose to cancel it
    run = Run(hook=hook, steps=30, schedule=schedule).go(deadline_seconds=400)
    check_laws(run)
    assert set(run.controller.flight.failures) == {"env_timeout"}
    assert 2 <= run.controller.flight.failures["env_timeout"] <= 4  # the first ends its group
    used = {group.task.id for update in run.updates for group in update.groups}
    assert not used & {"1", "4"}


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
    run = Run(hook=hook, schedule=schedule, steps=10, rollout=replace(
        ROLLOUT, env_deadline_seconds=1000.0)).go()  # fmt: skip
    check_laws(run)
    counts = ledger.counts(run.controller.ledger)
    assert counts.dropped["over_age"] >= 1
    assert counts.reissued >= 1
    assert visits["1"] == 4  # two members, twice
    assert "1" in {group.task.id for update in run.updates for group in update.groups}


def test_episodes_in_flight_stay_within_their_cap():
    highest = 0

    async def hook(call, task, step):
        nonlocal highest
        highest = max(highest, run.books.opened - run.books.closed)
        await trio.sleep(1.0)

    schedule = Schedule(batch_groups=4, max_mean_lag=4, max_lag=9)
    run = Run(hook=hook, schedule=schedule, steps=6, rollout=replace(ROLLOUT, max_episodes=7))
    run.go()
    assert highest == 6  # three groups of two


def test_law_16_cancelled_at_any_time_everything_is_closed():
    async def hook(call, task, step):
        await trio.sleep(0.7)

    for tenths in range(1, 120, 7):
        run = Run(hook=hook, steps=50)
        with pytest.raises((trio.TooSlowError, BaseExceptionGroup)):
            run.go(deadline_seconds=tenths / 10)
        counts = ledger.counts(run.controller.ledger)
        assert counts.running == counts.ready == 0
        assert run.books.balanced


def test_law_19_bookkeeping_stays_bounded():
    run = Run(steps=200).go()
    controller = vars(run.controller)
    sizes = {name: len(value) for name, value in controller.items() if isinstance(value, dict)}
    assert max(sizes.values()) <= 8, sizes
    assert not np.isnan(run.seconds)
