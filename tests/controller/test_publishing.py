"""A version counts as published once the sampler acknowledges it, and not before."""

from collections import Counter

import pytest
import trio

from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import Run, check_laws, failure_of
from tests.fakes.policy import FakePolicy

ON_POLICY = Schedule(batch_groups=2, max_mean_lag=0, max_lag=0)


async def ignored(version):
    await trio.lowlevel.checkpoint()


def test_conformance_11_a_publish_that_fails_publishes_nothing():
    async def fails(version):
        await trio.sleep(1.0)
        raise OSError("link down")

    run = Run(schedule=ON_POLICY).replace(publish=fails)
    failure = failure_of(run, deadline_seconds=60)
    assert failure.stage == "weight_sync"
    assert run.controller.ledger.published == 0
    assert run.controller.ledger.committed == 1
    assert run.stages.tasks.given == 2  # nothing was started for a version that isn't there


def test_conformance_11_admission_waits_for_a_late_acknowledgement():
    """The new weights are in use long before they are acknowledged."""
    seen = []

    async def hook(call, detail):
        if call == "acknowledge":
            given = run.stages.tasks.given
            await trio.sleep(100.0)
            seen.append((run.controller.ledger.published, given, run.stages.tasks.given))

    run = Run(policy=FakePolicy(hook=hook), schedule=ON_POLICY, steps=3)
    run.go()
    check_laws(run)
    assert seen == [(0, 2, 2), (1, 4, 4), (2, 6, 6)]


def test_conformance_11_what_an_ignored_publish_leaves_behind_is_seen():
    """Acknowledged, yet the tokens are of the old version: training on would be off-policy."""
    run = Run(schedule=ON_POLICY).replace(publish=ignored)
    failure = failure_of(run, deadline_seconds=60)
    assert failure.stage == "groups"
    assert "reports versions 0 to 0; possible are 1 to 1" in str(failure)


def test_conformance_11_an_ignored_publish_is_seen_at_once_where_its_version_is_held():
    schedule = Schedule(batch_groups=2, max_mean_lag=1, deterministic=True)
    failure = failure_of(Run(schedule=schedule).replace(publish=ignored), deadline_seconds=60)
    assert failure.stage == "sampler"
    assert "version 1 is asked for" in str(failure)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("moment", ["update", "publish", "acknowledge"])
def test_a_stop_in_the_middle_of_an_update_or_a_publish_leaves_nothing(moment, deterministic):
    """Conformance 9, too: neither is done twice or counted without having been done."""

    async def hook(call, detail):
        if call == moment and run.controller.ledger.formed == 3:
            reached.append(run.controller.ledger)
            await trio.sleep(1000.0)

    async def stop(run, nursery):
        await trio.sleep(100.0)
        nursery.cancel_scope.cancel()

    reached = []
    policy = FakePolicy(hook=hook)
    schedule = Schedule(batch_groups=2, max_mean_lag=1, max_lag=3, deterministic=deterministic)
    config = ControllerConfig(update_deadline_seconds=2000.0, publish_deadline_seconds=2000.0)
    run = Run(policy=policy, schedule=schedule, config=config)
    run.go(beside=stop)
    assert len(reached) == 1
    ledger = run.controller.ledger
    assert ledger.committed == policy.updates == (2 if moment == "update" else 3)
    assert ledger.published == 2
    assert policy.versions == ([0, 1, 2, 3] if moment == "acknowledge" else [0, 1, 2])


@pytest.mark.parametrize("moment", ["publish", "acknowledge"])
def test_conformance_9_the_lags_are_exact_though_groups_are_cancelled_during_a_publish(moment):
    """Group 1 is cancelled as too old, and closes slowly, while version 2 is published."""
    steps = Counter()

    async def env(call, task, step):
        if task is not None and task.id == "1" and steps["1"] <= 2:  # both members, once
            steps["1"] += call == "step"
            await trio.sleep({"step": 19.0, "close": 9.0}.get(call, 0.0))

    async def policy(call, detail):
        if call == moment:
            await trio.sleep(7.0)

    schedule = Schedule(batch_groups=1, max_mean_lag=1, max_lag=1)
    run = Run(hook=env, policy=FakePolicy(hook=policy), schedule=schedule, steps=6, replies="")
    run.go()
    check_laws(run)
    assert run.counts.dropped["over_age"] >= 1
    assert run.policy.versions == [*range(7)]


def test_what_a_publish_would_expire_is_cancelled_before_the_publish():
    """In fact as soon as the batch is formed, so that the rows serve others meanwhile."""
    events = []

    async def env(call, task, step):
        if task is not None and task.id == "1":
            if call == "close":
                events.append("group 1 is closed")
            if call == "step":
                await trio.sleep(19.0)

    async def policy(call, detail):
        if call in ("update", "publish"):
            formed = run.controller.ledger.formed
            events.append(f"{call} {detail if call == 'publish' else formed}")
            await trio.sleep(1.0)

    schedule = Schedule(batch_groups=1, max_mean_lag=1, max_lag=1, max_reissues=0)
    run = Run(hook=env, policy=FakePolicy(hook=policy), schedule=schedule, replies="")
    run.go()
    check_laws(run)
    of_interest = [event for event in events if event.endswith("2") or "closed" in event]
    assert of_interest == ["group 1 is closed", "group 1 is closed", "update 2", "publish 2"]
