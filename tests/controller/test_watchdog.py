"""A run in which nothing moves ends, and says who waits for what since when."""

from dataclasses import replace

import pytest
import trio

from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.errors import PipelineStalled, innermost
from headrace.pipeline.groups.ledger import Schedule
from tests.controller.harness import ROLLOUT, Run, check_laws, failure_of
from tests.fakes.policy import FakePolicy

ALONE = replace(ROLLOUT, group_size=1)


class AllKinds(Run):
    """Groups of which one hangs in each kind of call, and an evaluation that hangs."""

    def __init__(self):
        super().__init__(
            hook=self.hang,
            policy=FakePolicy(hook=self.hang_in_policy),
            schedule=Schedule(batch_groups=2, max_mean_lag=2, max_lag=9),
            rollout=ALONE,
            evaluate_every=1,
        )
        self.replace(evaluate=self.evaluate)

    async def hang(self, call, task, step):
        if task is None:  # of which group, it doesn't know
            if self.books.opened == 6:
                await trio.sleep_forever()
        elif (task.id, call) in {("2", "reset"), ("3", "step"), ("4", "close")}:
            await trio.sleep_forever()

    async def hang_in_policy(self, call, detail):
        if call == "request" and detail.priority == 5:
            await trio.sleep_forever()

    async def evaluate(self, version, flight):
        await trio.sleep_forever()


def described_at(run, seconds):
    """Run so long, then stop the run; return what it said of itself."""
    said = []

    async def look(run, nursery):
        await trio.sleep(seconds)
        said.extend(run.controller.describe(trio.current_time()))
        nursery.cancel_scope.cancel()

    run.go(beside=look)
    return said


def test_it_says_who_waits_for_what_since_when_in_every_kind_of_wait():
    said = described_at(AllKinds(), 9.0)
    stages, episodes = said[:3], said[3:]
    assert stages == [
        "versions: 1 committed, 1 published; groups: 6 running, 0 ready, 0 in a batch, "
        "0 more may start",
        "groups: a batch, for 6.0 s of at most 3600 s",
        "evaluate: version 1, for 6.0 s",
    ]
    assert sorted(episodes) == [
        "2.0 (task '2'): environment reset, for 9.0 s of at most 20 s",
        "3.0 (task '3'): environment step, for 8.0 s of at most 20 s",
        "4.0 (task '4'): environment close, for 7.0 s of at most 10 s",
        "5.0 (task '5'): sample, for 9.0 s of at most 600 s",
        "6.0 (task '6'): environment open, for 6.0 s of at most 20 s",
        "7.0 (task '7'): environment open, for 6.0 s of at most 20 s",
    ]
    ages = [float(line.split(" for ")[1].split()[0]) for line in episodes]
    assert ages == sorted(ages, reverse=True)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("update", "learner: update 1, for 3.0 s of at most 1800 s"),
        ("publish", "weight_sync: publishing 1, for 3.0 s of at most 300 s"),
    ],
)
def test_it_says_which_stage_works_and_since_when(call, line):
    async def hook(now, detail):
        if now == call:
            await trio.sleep_forever()

    policy = FakePolicy(hook=hook, update_seconds=0.0)
    assert line in described_at(Run(policy=policy), 5.0)


async def refuses_to_be_cancelled(call, task, step):
    if call == "step":
        with trio.CancelScope(shield=True):
            await trio.sleep(5000.0)


def test_an_environment_that_refuses_cancellation_is_named_when_all_else_waits_for_it():
    config = ControllerConfig(stall_seconds=100.0)
    run = Run(hook=refuses_to_be_cancelled, rollout=ALONE, config=config)
    failure = failure_of(run)
    assert failure.stage == "watchdog"
    assert isinstance(innermost(failure.__cause__), PipelineStalled)
    first, *lines = str(failure).split("\n  ")
    assert first.endswith("nothing has moved for 100 s. Who waits for what:")
    assert "groups: a batch, for 110.0 s of at most 3600 s" in lines
    assert "0.0 (task '0'): environment step, for 109.0 s of at most 20 s" in lines


@pytest.mark.parametrize(
    ("rollout", "config", "seconds"),
    [
        (ROLLOUT, ControllerConfig(), 1860.0),
        (replace(ROLLOUT, env_deadline_seconds=9000.0), ControllerConfig(), 9060.0),
        (replace(ROLLOUT, close_deadline_seconds=8000.0), ControllerConfig(), 8060.0),
        (replace(ROLLOUT, sample_deadline_seconds=7000.0), ControllerConfig(), 7060.0),
        (ROLLOUT, ControllerConfig(publish_deadline_seconds=6000.0), 6060.0),
        (replace(ROLLOUT, env_deadline_seconds=9000.0), ControllerConfig(stall_seconds=5.0), 5.0),
    ],
)
def test_by_default_it_waits_for_the_longest_deadline_and_a_minute(rollout, config, seconds):
    assert config.stall_after_seconds(rollout) == seconds


def test_long_waits_within_their_deadlines_are_no_stall():
    async def hook(call, detail):
        await trio.sleep({"update": 1700.0, "publish": 290.0}.get(call, 0.0))

    async def env(call, task, step):
        await trio.sleep({"reset": 2900.0}.get(call, 0.0))

    on_policy = Schedule(batch_groups=2, max_mean_lag=0, max_lag=0)
    rollout = replace(ROLLOUT, env_deadline_seconds=3000.0)
    run = Run(policy=FakePolicy(hook=hook), hook=env, schedule=on_policy, rollout=rollout)
    check_laws(run.go(deadline_seconds=1e6))


def test_an_evaluation_that_never_ends_keeps_the_run_from_ending_in_silence():
    async def evaluate(version, flight):
        await trio.sleep_forever()

    run = Run(evaluate_every=1, config=ControllerConfig(stall_seconds=100.0))
    failure = failure_of(run.replace(evaluate=evaluate))
    assert failure.stage == "watchdog"
    assert len(run.updates) == run.steps
    assert "evaluate: version 1" in str(failure)


def test_a_ledger_from_which_nothing_can_follow_ends_the_run_at_once():
    """Law 5 says that there is none, so one is planted: a schedule that isn't allowed."""
    schedule = Schedule(batch_groups=2, max_mean_lag=0, max_lag=0)
    object.__setattr__(schedule, "publish_every", 5)
    run = Run(schedule=schedule)
    failure = failure_of(run, deadline_seconds=60)
    assert failure.stage == "groups"
    assert "the learner waits, nothing runs and nothing may be started" in str(failure)
    assert "groups: a batch, for 0.0 s of at most 3600 s" in str(failure)
    assert len(run.updates) == 1
