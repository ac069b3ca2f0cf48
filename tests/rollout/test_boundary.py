"""A fault is that of the call in which it arose, whatever else happens in the same moment."""

import pytest
import trio
import trio.testing

from headrace.envs import Task
from headrace.pipeline.rollout.boundary import Boundary, Fault
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import EpisodeIdentity, Rollout, run_episode
from headrace.pipeline.types import EpisodeFailure, FailureKind, Trajectory
from tests.fakes.env import Books, FakeEnv
from tests.rollout.test_episode import RENDERER, Script, turn

ENV = FailureKind.ENV_ERROR, FailureKind.ENV_TIMEOUT
SAMPLER = FailureKind.SAMPLER_ERROR, FailureKind.SAMPLER_TIMEOUT
IDENTITY = EpisodeIdentity(key=(1, 2), env_seed=3)


def run(function):
    return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


def test_an_error_and_a_missed_deadline_have_the_kind_of_their_call():
    async def raises():
        with Boundary("only", ENV, 5.0):
            pass

    async def second_call_raises():
        boundary = Boundary("first", ENV, 5.0)
        with boundary:
            boundary.returned()
            boundary.call("second", SAMPLER, 5.0)
            raise OSError("lost")

    async def second_call_hangs():
        boundary = Boundary("first", ENV, 5.0)
        with boundary:
            boundary.returned()
            boundary.call("second", SAMPLER, 7.0)
            await trio.sleep_forever()

    run(raises)
    with pytest.raises(Fault, match="second: OSError: lost") as caught:
        run(second_call_raises)
    assert caught.value.kind is FailureKind.SAMPLER_ERROR
    with pytest.raises(Fault, match=r"second took more than 7\.0 s") as caught:
        run(second_call_hangs)
    assert caught.value.kind is FailureKind.SAMPLER_TIMEOUT


def test_an_error_between_two_calls_is_the_owners():
    async def between():
        boundary = Boundary("first", ENV, 5.0)
        with boundary:
            boundary.returned()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(between)


async def resets_when_cancelled(*_):
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        raise OSError("connection reset") from None


def test_an_error_with_which_a_call_answers_its_deadline_or_a_stop_is_no_error_of_its_own():
    async def missed():
        boundary = Boundary("step", ENV, 5.0)
        with boundary:
            await resets_when_cancelled()

    async def stopped():
        boundary = Boundary("step", ENV, 5.0)
        with boundary:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(resets_when_cancelled)
                await trio.sleep(1.0)
                boundary.stop("over_age")

    with pytest.raises(Fault, match=r"step took more than 5.0 s; OSError: connection reset"):
        run(missed)
    with pytest.raises(Fault, match=r"step: over_age; OSError: connection reset") as caught:
        run(stopped)
    assert caught.value.kind is FailureKind.CANCELLED


def test_an_error_in_a_nursery_of_the_call_is_told_without_its_wrapping():
    async def lose(*_):
        raise OSError("no such host")

    async def in_nurseries():
        boundary = Boundary("step", ENV, 5.0)
        with boundary:
            async with trio.open_nursery() as outer, trio.open_nursery() as inner:
                inner.start_soon(lose)
                outer.start_soon(trio.sleep, 1.0)

    with pytest.raises(Fault, match="step: OSError: no such host"):
        run(in_nurseries)


class Late(FakeEnv):
    """One of its calls returns in the very moment in which its deadline passes.

    That is what a loop does which was busy for long: it finds the answer and the missed
    deadline at once.
    """

    late: str

    async def busy(self, call):
        if call == self.late:
            event = trio.Event()
            trio.lowlevel.spawn_system_task(self.answer, event)
            await event.wait()

    async def answer(self, event):
        event.set()
        trio.lowlevel.current_clock().jump(1000.0)

    async def __aenter__(self):
        await super().__aenter__()
        await self.busy("open")
        return self

    async def reset(self, task, seed):
        messages = await super().reset(task, seed)
        await self.busy("reset")
        return messages

    async def step(self, message):
        result = await super().step(message)
        await self.busy("step")
        return result

    async def __aexit__(self, *error):
        await super().__aexit__(*error)
        await self.busy("close")


@pytest.mark.parametrize("where", ["open", "reset", "step", "close"])
@pytest.mark.parametrize("closes_at_once", [False, True])
def test_an_answer_in_the_moment_of_its_deadline_is_an_outcome_of_that_call(where, closes_at_once):
    books = Books()
    later = []

    async def hook(call, task, step):
        if call != "close" or not closes_at_once:
            await trio.lowlevel.checkpoint()

    def make():
        env = Late(books, ("1",), hook)
        env.late = where
        return env

    async def main():
        rollout = Rollout(make, RENDERER, Script(turn("1")), RolloutConfig(max_tokens=64))
        outcome = await run_episode(rollout, Task("t", {"text": "12"}), IDENTITY)
        await trio.lowlevel.checkpoint()  # nothing of the episode's cancellation gets out
        later.append(True)
        return outcome

    outcome = run(main)
    assert later
    assert books.balanced
    assert isinstance(outcome, Trajectory | EpisodeFailure)
    if isinstance(outcome, EpisodeFailure):
        assert outcome.kind is FailureKind.ENV_TIMEOUT
        assert f"environment {where} took more than" in outcome.error


class Connected(FakeEnv):
    """Holds a nursery from opening to closing; its connection breaks after a while."""

    ending: BaseException | None = None

    async def __aenter__(self):
        self.manager = trio.open_nursery()
        self.nursery = await self.manager.__aenter__()
        self.nursery.start_soon(self.break_down)
        return await super().__aenter__()

    async def break_down(self):
        await trio.sleep(1.5)
        if self.ending is None:
            self.nursery.cancel_scope.cancel()
        else:
            raise self.ending

    async def __aexit__(self, *error):
        await super().__aexit__(*error)
        await self.manager.__aexit__(*error)


@pytest.mark.parametrize("ending", [OSError("connection lost"), None])
@pytest.mark.parametrize("where", ["reset", "sample", "step"])
def test_a_nursery_of_the_environment_that_ends_too_early_is_a_failure_of_it(ending, where):
    books, later = Books(), []

    async def hook(call, task, step):
        if call == where:
            await trio.sleep(9.0)

    def make():
        env = Connected(books, ("1",), hook)
        env.ending = ending
        return env

    async def main():
        sample = Script(turn("1"), seconds=9.0 if where == "sample" else 0.0)
        rollout = Rollout(make, RENDERER, sample, RolloutConfig(max_tokens=64))
        outcome = await run_episode(rollout, Task("t", {"text": "12"}), IDENTITY)
        await trio.lowlevel.checkpoint()
        later.append(True)
        return outcome

    outcome = run(main)
    assert later
    assert books.balanced
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.ENV_ERROR
    if ending is not None:
        assert "connection lost" in outcome.error
