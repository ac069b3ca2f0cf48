"""Each stage is killed in turn, in each way: the run ends with its name, or counts and goes on."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import trio

from headrace.pipeline.commands.messages import explain
from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.waits import DeadlineMissed
from tests.controller.harness import Numbered, Run, failure_of, leaves
from tests.fakes.policy import FakePolicy

DEADLINE = 400.0  # virtual seconds, longer than any deadline of the settings below
CONFIG = ControllerConfig(
    update_deadline_seconds=50.0,
    publish_deadline_seconds=60.0,
    batch_deadline_seconds=200.0,
    stall_seconds=150.0,
    group_failures=8,
)
SOON = 12.0  # each of them dies within seconds of the start
BROKEN = OSError("disk full")


@contextmanager
def failing_at_its_end(version):
    """A hold that can't be given back."""
    yield
    raise BROKEN


class OwnError(BaseException):
    """Foreign code may raise anything."""


OUTSIDE = [SystemExit(3), KeyboardInterrupt(), OwnError("the end")]


async def hang(*arguments):
    await trio.sleep_forever()


def nothing(*arguments):
    return None


async def nothing_later(*arguments):
    await trio.lowlevel.checkpoint()


def raising(error):
    def fail(*arguments):
        raise error

    return fail


def raising_later(error):
    async def fail(*arguments):
        await trio.sleep(0.1)
        raise error

    return fail


def second_call(good, bad):
    calls = []

    def call(*arguments):
        calls.append(arguments)
        return good(*arguments) if len(calls) == 1 else bad(*arguments)

    return call


def second_call_later(good, bad):
    call = second_call(good, bad)

    async def call_later(*arguments):
        return await call(*arguments)

    return call_later


def killed(stage, by, *, deterministic=False):
    """Return a run one of whose stages does what `by` does, after a first call that works."""
    run = Run(
        config=CONFIG,
        evaluate_every=1,
        schedule=Schedule(batch_groups=2, max_mean_lag=1, max_lag=3, deterministic=deterministic),
    ).replace(evaluate=nothing_later)
    match stage:
        case "prompts":
            run.stages.tasks.next = second_call(Numbered().next, by)
        case "batching":
            run.replace(pack=second_call(run.pack, by))
        case "learner":
            run.policy.update = second_call_later(run.policy.update, by)
        case "weight_sync":
            run.replace(publish=second_call_later(run.policy.publish, by))
        case "evaluate":
            run.replace(evaluate=by)
        case "observe":
            run.on_update = second_call(run.on_update, by)
        case "hold":
            run.replace(hold=second_call(run.policy.hold, by))
        case "load":
            run.replace(load=second_call(run.policy.load, by))
    return run


@pytest.mark.parametrize(
    ("stage", "by", "named", "because"),
    [
        # what dies     what it does now           who is named   and why
        ("prompts",     raising(BROKEN),           "prompts",     "OSError: disk full"),
        ("prompts",     nothing,                   "prompts",     "next must return a Task"),
        ("prompts",     raising(StopIteration()),  "prompts",     "StopIteration"),
        ("batching",    raising(BROKEN),           "batching",    "OSError: disk full"),
        ("batching",    nothing,                   "batching",    "TypeError"),
        ("learner",     raising_later(BROKEN),     "learner",     "OSError: disk full"),
        ("learner",     nothing_later,             "learner",     "must return metrics"),
        ("learner",     hang,                      "learner",     "more than 50 s"),
        ("weight_sync", raising_later(BROKEN),     "weight_sync", "OSError: disk full"),
        ("weight_sync", hang,                      "weight_sync", "more than 60 s"),
        ("evaluate",    raising_later(BROKEN),     "evaluate",    "OSError: disk full"),
        ("observe",     raising(BROKEN),           "observe",     "OSError: disk full"),
        ("hold",        raising(BROKEN),           "sampler",     "OSError: disk full"),
        ("hold",        nothing,                   "sampler",     "TypeError"),
        ("hold",        failing_at_its_end,        "sampler",     "OSError: disk full"),
        ("load",        raising(BROKEN),           "sampler",     "OSError: disk full"),
        ("load",        nothing,                   "sampler",     "AttributeError"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("deterministic", [False, True])
def test_conformance_1_a_stage_that_dies_ends_the_run_with_its_name(
    stage, by, named, because, deterministic
):
    run = killed(stage, by, deterministic=deterministic)
    failure = failure_of(run, deadline_seconds=DEADLINE)
    assert failure.stage == named
    assert because in str(failure)
    assert run.seconds < SOON + (60.0 if by is hang else 0.0)
    assert explain(failure) == 1  # the exit code


@pytest.mark.parametrize("error", OUTSIDE)
@pytest.mark.parametrize(
    ("stage", "fail"),
    [
        ("prompts", raising),
        ("batching", raising),
        ("learner", raising_later),
        ("weight_sync", raising_later),
        ("evaluate", raising_later),
        ("observe", raising),
        ("hold", raising),
        ("load", raising),
    ],
)
def test_conformance_3_an_error_outside_exception_in_a_stage_ends_the_run(stage, fail, error):
    with pytest.raises(BaseExceptionGroup) as caught:
        killed(stage, fail(error)).go(deadline_seconds=DEADLINE)
    assert set(leaves(caught.value)) == {error}


@pytest.mark.parametrize("error", OUTSIDE)
@pytest.mark.parametrize("where", ["open", "reset", "step", "close", "request"])
def test_conformance_3_an_error_outside_exception_in_an_episode_ends_the_run(where, error):
    calls = []

    async def hook(call, *_):
        calls.append(call)
        if call == where and calls.count(call) == 4:
            raise error

    with pytest.raises(BaseExceptionGroup) as caught:
        Run(hook=hook, policy=FakePolicy(hook=hook)).go(deadline_seconds=60)
    assert leaves(caught.value) == [error]


def test_what_fails_as_a_consequence_hides_no_failure():
    """Weights that are held in lockstep can't be given back once the learner has died."""
    died = []

    async def die(*arguments):
        await trio.sleep(0.1)
        died.append(arguments)
        raise BROKEN

    @contextmanager
    def lost_with_the_learner(version):
        yield
        if died:
            raise OSError("no device")

    run = killed("learner", die, deterministic=True).replace(hold=lost_with_the_learner)
    with pytest.raises(BaseExceptionGroup) as caught:
        run.go(deadline_seconds=DEADLINE)
    assert [str(error) for error in leaves(caught.value)] == [
        "stage 'learner' failed: OSError: disk full",
        "stage 'sampler' failed: OSError: no device",
    ]


async def break_when_cancelled(*arguments):
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        raise OSError("interrupted") from None


def test_an_error_with_which_a_stage_answers_its_deadline_does_not_hide_the_deadline():
    failure = failure_of(killed("learner", break_when_cancelled), deadline_seconds=DEADLINE)
    assert isinstance(failure.__cause__, DeadlineMissed)
    assert "update 2 took more than 50 s and then failed: OSError: interrupted" in str(failure)
    assert "--controller.update-deadline-seconds" in str(failure)


def test_a_missed_deadline_says_what_was_waited_for_and_which_setting_to_raise():
    failure = failure_of(killed("learner", hang), deadline_seconds=DEADLINE)
    assert isinstance(failure.__cause__, DeadlineMissed)
    assert str(failure.__cause__) == (
        "update 2 took more than 50 s; mend it, or raise --controller.update-deadline-seconds"
    )


def test_a_batch_that_never_comes_ends_the_run():
    """Episodes that always move and never end look well to the watchdog."""

    async def hook(call, task, step):
        await trio.sleep(9.0)

    run = Run(hook=hook, replies="1" * 1000, config=CONFIG)
    run.set_rollout(max_turns=1000, max_tokens=8000)
    failure = failure_of(run, deadline_seconds=DEADLINE)
    assert failure.stage == "groups"
    assert "a batch took more than 200 s" in str(failure)
    assert "--controller.batch-deadline-seconds" in str(failure)


def answers(**wrong):
    """A sampler whose answers are wrong in these fields."""

    def of(good):
        async def sample(request):
            return replace(await good(request), **wrong)

        return sample

    return of


SAMPLER_WAYS = [
    # what a request does now, and how it is counted
    (lambda good: raising_later(RuntimeError("row lost")), "sampler_error"),
    (lambda good: hang, "sampler_timeout"),
    (lambda good: nothing_later, "sampler_error"),
    (answers(tokens=[1, 2]), "sampler_error"),
    (answers(tokens=np.arange(9, dtype=np.int32)), "sampler_error"),
    (answers(logprobs=np.full(2, np.nan, np.float32)), "sampler_error"),
    (answers(logprobs=np.zeros(1, np.float32)), "sampler_error"),
    (answers(policy_versions=np.array([1, 0], np.int32)), "sampler_error"),
    (answers(policy_versions=np.array([-1, -1], np.int32)), "sampler_error"),
]


@pytest.mark.parametrize(("way", "kind"), SAMPLER_WAYS)
def test_a_request_that_dies_is_counted_and_the_run_goes_on(way, kind):
    each_group_is_needed = Schedule(batch_groups=2, max_mean_lag=0, max_lag=0)
    run = Run(config=CONFIG, schedule=each_group_is_needed, replies="")
    run.set_rollout(sample_deadline_seconds=40.0, max_retries=3)
    good, bad, calls = run.policy.sample, way(run.policy.sample), []

    async def sample(request):
        calls.append(request)
        return await (bad(request) if 4 <= len(calls) < 7 else good(request))

    run.set_sample(sample).go(deadline_seconds=DEADLINE)
    assert len(run.updates) == run.steps
    assert run.controller.flight.failures == {kind: 3}


@pytest.mark.parametrize(("way", "kind"), SAMPLER_WAYS)
def test_a_sampler_whose_requests_all_die_ends_the_run_after_the_stated_budget(way, kind):
    run = Run(config=CONFIG)
    run.set_rollout(sample_deadline_seconds=40.0)
    run.set_sample(way(run.policy.sample))
    failure = failure_of(run, deadline_seconds=DEADLINE)
    assert "8 groups in a row failed, the last one with" in str(failure)
    assert "sample" in str(failure)
    assert set(run.controller.flight.failures) == {kind}
