"""Law 16: wherever a run is cancelled or fails, nothing of it is left."""

import pytest
import trio

from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import ROLLOUT, Run, check_laws, failure_of, leaves
from tests.controller.schedules import escape
from tests.fakes.policy import FakePolicy


async def slow(call, *_):
    await trio.sleep(0.7)


@pytest.mark.parametrize("deterministic", [False, True])
def test_law_16_cancelled_at_any_time_everything_is_closed(deterministic):
    schedule = Schedule(batch_groups=2, max_mean_lag=1, max_lag=3, deterministic=deterministic)
    for tenths in range(1, 120, 7):
        run = Run(hook=slow, steps=50, schedule=schedule)
        with pytest.raises(trio.TooSlowError):
            run.go(deadline_seconds=tenths / 10)


@pytest.mark.parametrize("in_a_nursery", [False, True])
@pytest.mark.parametrize("where", ["open", "reset", "step", "close"])
def test_a_stop_is_in_order_though_environments_answer_it_with_errors(where, in_a_nursery):
    """Their errors are no reason to say that all of them fail."""

    async def fails_when_cancelled():
        try:
            await trio.sleep(9.0)
        except trio.Cancelled:
            raise OSError("connection reset") from None

    async def hook(call, task, step):
        if call == where and in_a_nursery:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails_when_cancelled)
                await trio.sleep(9.0)  # so a group of an error and a cancellation comes out
        elif call == where:
            await fails_when_cancelled()

    async def stop(run, nursery):
        await trio.sleep(4.0)
        nursery.cancel_scope.cancel()

    run = Run(hook=hook, config=ControllerConfig(group_failures=1))
    run.go(beside=stop)
    assert run.seconds < 14.0


def test_what_a_stopped_run_leaves_undone_is_accounted_for():
    async def stop(run, nursery):
        await trio.sleep(5.0)
        nursery.cancel_scope.cancel()

    run = Run(hook=slow, steps=50).go(beside=stop)
    assert run.counts.dropped["run_ended"] > 0
    assert run.counts.admitted == (
        run.counts.consumed + run.counts.in_batch + sum(run.counts.dropped.values())
    )


def test_the_end_does_not_wait_for_episodes_that_nobody_needs():
    """The last update is made; what runs for later ones is stopped, not waited for."""

    async def hook(call, task, step):
        needed = task is None or int(task.id) < 4
        await trio.sleep(0.5 if needed else 19.0)

    schedule = Schedule(batch_groups=2, max_mean_lag=4, max_lag=9)
    run = Run(hook=hook, steps=2, schedule=schedule, rollout=ROLLOUT).go()
    assert len(run.updates) == 2
    assert run.seconds < 30.0  # the closing of an environment is never cut short


@pytest.mark.parametrize("where", ["open", "reset", "step", "close", "request"])
def test_a_cancellation_that_escapes_from_an_episodes_calls_is_a_failure_of_it(where):
    calls = []

    async def hook(call, *_):
        calls.append(call)
        if call == where and calls.count(call) == 3:
            await escape()

    run = Run(hook=hook, policy=FakePolicy(hook=hook)).go()
    check_laws(run)
    kind = "sampler_error" if where == "request" else "env_error"
    assert run.controller.flight.failures == {kind: 1}


@pytest.mark.parametrize(("where", "stage"), [("update", "learner"), ("publish", "weight_sync")])
def test_a_cancellation_that_escapes_from_a_stage_ends_the_run_with_its_name(where, stage):
    async def hook(call, detail):
        if call == where and len(run.policy.versions) == 3:
            await escape()

    run = Run(policy=FakePolicy(hook=hook))
    failure = failure_of(run)
    assert failure.stage == stage
    assert "a cancellation escaped from its scope" in str(failure)


def test_a_run_never_ends_in_silence_before_its_last_update():
    """A cancellation escapes where nothing looks for one."""

    async def plant(run, nursery):
        await trio.sleep(4.0)
        run.controller._nursery.start_soon(escape)

    with pytest.raises(BaseExceptionGroup) as caught:
        Run().go(beside=plant)
    (failure,) = leaves(caught.value)
    assert failure.stage == "controller"
    assert "cancelled from within at version 2 of 4" in str(failure)
