"""What an environment holds open between its calls changes nothing of an episode's outcome.

A nursery or a cancel scope, from opening or from `reset` until it is closed. Whatever its calls do
in between: each environment that was opened is closed once, and what came first is what counts.
"""

from contextlib import suppress

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Episode, EpisodeIdentity, Rollout
from headrace.pipeline.types import EpisodeFailure
from tests.controller.schedules import escape
from tests.fakes.env import Books, FakeEnv
from tests.rollout.test_episode import RENDERER, Script, turn

IDENTITY = EpisodeIdentity(key=(1, 2), env_seed=3)
CONFIG = RolloutConfig(max_tokens=64)
WORK = ["environment reset", "sample", "environment step"]
HOLDS = ["nursery open", "nursery reset", "scope open", "scope reset"]


class Own(BaseException):
    """Neither Python's nor trio's."""


class Holding(FakeEnv):
    """Holds a nursery with a task in it, or a scope, from one of its calls to closing."""

    holds: str
    context = scope = None

    async def hold(self, where):
        if self.holds == f"nursery {where}":
            self.context = trio.open_nursery()
            nursery = await self.context.__aenter__()
            nursery.start_soon(trio.sleep_forever)
            self.scope = nursery.cancel_scope
        if self.holds == f"scope {where}":
            self.scope = trio.CancelScope()
            self.scope.__enter__()

    async def __aenter__(self):
        await self.hold("open")
        return await super().__aenter__()

    async def reset(self, task, seed):
        await self.hold("reset")
        return await super().reset(task, seed)

    async def __aexit__(self, *error):
        try:
            await super().__aexit__(*error)
        finally:
            if self.context is not None:
                self.scope.cancel()
                await self.context.__aexit__(None, None, None)
            elif self.holds.startswith("scope") and self.scope is not None:
                self.scope.__exit__(None, None, None)


async def fails(error):
    raise error


async def escapes_with(*errors):
    try:
        await escape()
    except trio.Cancelled as stray:
        raise BaseExceptionGroup("of a nursery", [stray, *errors]) from None


async def fails_when_cancelled():
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        raise OSError("connection reset") from None


async def fails_in_a_nursery_when_cancelled():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails_when_cancelled)
        await trio.sleep_forever()


async def swallows():
    with suppress(trio.Cancelled):
        await trio.sleep_forever()


async def is_late():
    try:
        await trio.sleep_forever()
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.sleep(2.0)
        raise


MANNERS = {
    "well": trio.lowlevel.checkpoint,
    "fails": lambda: fails(OSError("lost")),
    "hangs": trio.sleep_forever,
    "exits": lambda: fails(SystemExit(3)),
    "ends": lambda: fails(Own("the end")),
    "escapes": escape,
    "escapes in a group": escapes_with,
    "escapes with an error": lambda: escapes_with(OSError("lost")),
    "escapes with an exit": lambda: escapes_with(SystemExit(3)),
    "fails when cancelled": fails_when_cancelled,
    "fails in a nursery when cancelled": fails_in_a_nursery_when_cancelled,
    "swallows": swallows,
    "is slow": lambda: trio.sleep(1.0),
    "is late": is_late,
}


def outcome_of(holds, manners, *, stop_after=None, renderer=RENDERER, deadlines=None):
    """Say in words how an episode ends, whose calls behave so, and when."""
    books, said = Books(), []

    async def hook(call, task, step):
        if deadlines is not None:
            deadlines[call] = trio.current_effective_deadline() - trio.current_time()
        await MANNERS[manners.get(call, "well")]()

    def make():
        env = Holding(books, ("1",), hook)
        env.holds = holds
        return env

    async def sample(request):
        await MANNERS[manners.get("sample", "well")]()
        return await script(request)

    script = Script(turn("1"))
    rollout = Rollout(make, renderer, sample, CONFIG)

    async def run(episode):
        try:
            outcome = await episode.run()
        except BaseException as error:
            said.append(" ".join(type(each).__name__ for each in flat(error)))
            return
        failed = isinstance(outcome, EpisodeFailure)
        # After a semicolon: the error with which a call answered its cancellation.
        said.append(f"{outcome.kind}: {outcome.error}".partition(";")[0] if failed else "well")
        await trio.lowlevel.checkpoint()  # nothing of the episode's cancellation gets out
        said.append(trio.current_time())

    async def main():
        episode = Episode(rollout, Task("t", {"text": "12"}), IDENTITY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, episode)
            if stop_after is not None:
                await trio.sleep(stop_after)
                episode.stop("over_age")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert books.opened == books.closed == 1
    return tuple(said)


def flat(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in flat(each)]
    return [error]


@given(
    holds=st.sampled_from(HOLDS),
    manners=st.fixed_dictionaries(
        {"close": st.sampled_from(sorted({*MANNERS} - {"swallows"}))},
        optional={call: st.sampled_from(sorted(MANNERS)) for call in ("reset", "sample", "step")},
    ),
    stop_after=st.sampled_from([None, 5.0]),
)
def test_what_an_environment_holds_changes_no_outcome(holds, manners, stop_after):
    plain = outcome_of("nothing", manners, stop_after=stop_after)
    assert outcome_of(holds, manners, stop_after=stop_after) == plain


@pytest.mark.parametrize("holds", ["nothing", *HOLDS])
@pytest.mark.parametrize(
    ("manner", "ends"),
    [
        ("fails", "env_error: environment step: OSError: lost"),
        ("hangs", "env_timeout: environment step took more than 60.0 s"),
        ("exits", "SystemExit"),
        ("ends", "Own"),
        ("escapes in a group", "env_error: environment step: cancelled by a scope"),
        ("escapes with an error", "env_error: environment step: OSError: lost"),
        ("escapes with an exit", "Cancelled SystemExit"),
        ("fails in a nursery when cancelled", "env_timeout: environment step took more than 60.0"),
    ],
)
@pytest.mark.parametrize("close", ["well", "fails", "hangs", "escapes", "is late"])
def test_what_came_first_is_what_counts(holds, manner, ends, close):
    (how, *_) = outcome_of(holds, {"step": manner, "close": close})
    assert how.startswith(ends)


@pytest.mark.parametrize("holds", ["nothing", *HOLDS])
def test_an_error_of_the_renderer_is_nobodys_outcome(holds):
    class Broken(type(RENDERER)):
        def parse(self, tokens):
            raise ZeroDivisionError

    renderer = Broken.__new__(Broken)
    renderer.__dict__.update(RENDERER.__dict__)
    assert outcome_of(holds, {}, renderer=renderer) == ("ZeroDivisionError",)


@pytest.mark.parametrize("holds", ["nothing", *HOLDS])
def test_stopped_at_any_time_it_is_closed_in_order(holds):
    slow = dict.fromkeys(["open", "reset", "sample", "step", "close"], "is slow")
    for half_seconds in range(14):
        stopped = half_seconds / 2 + 0.25
        how, when = outcome_of(holds, slow, stop_after=stopped)
        if stopped < 6.0:  # what is just being opened is opened first
            assert how in [f"cancelled: {call}: over_age" for call in WORK]
            assert when == max(stopped, 1.0) + 1.0
        else:
            assert (how, when) == ("well", 7.0)


@pytest.mark.parametrize("holds", ["nothing", *HOLDS])
def test_each_call_sees_its_own_deadline(holds):
    """As calls in worker threads do, to hand it on."""
    deadlines = {}
    slow = dict.fromkeys(["open", "reset", "sample", "step"], "is slow")
    assert outcome_of(holds, slow, deadlines=deadlines) == ("well", 6.0)
    assert deadlines == {"open": 60.0, "reset": 60.0, "step": 60.0, "close": 10.0}
