"""A wait of a stage has a name and a deadline, is listed while it lasts, and says what failed."""

import pytest
import trio
import trio.testing

from headrace.pipeline.errors import ConfigError, StageFailed
from headrace.pipeline.waits import DeadlineMissed, Waits
from tests.controller.schedules import escape


def run(function, *arguments):
    return trio.run(function, *arguments, clock=trio.testing.MockClock(autojump_threshold=0))


async def wait(waits, seconds, *, error=None):
    with waits.on("learner", "update 3", 10.0, setting="--some.setting"):
        await trio.sleep(seconds)
        if error is not None:
            raise error


def test_a_wait_is_listed_with_its_age_while_it_lasts_the_oldest_first():
    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, waits, 9.0)
            await trio.sleep(2.0)
            with waits.on("groups", "a batch", 1000.0, setting="--other"):
                await trio.sleep(2.5)
                seen.append(waits.describe(trio.current_time()))
            await trio.sleep(0.5)
            seen.append(waits.describe(trio.current_time()))

    waits, seen = Waits(), []
    run(main)
    assert seen == [
        [
            "learner: update 3, for 4.5 s of at most 10 s",
            "groups: a batch, for 2.5 s of at most 1000 s",
        ],
        ["learner: update 3, for 5.0 s of at most 10 s"],
    ]
    assert waits.describe(0.0) == []


def test_a_missed_deadline_fails_the_stage_and_names_the_setting():
    waits = Waits()
    with pytest.raises(StageFailed) as caught:
        run(wait, waits, 10.5)
    assert caught.value.stage == "learner"
    assert isinstance(caught.value.__cause__, DeadlineMissed)
    assert str(caught.value.__cause__) == (
        "update 3 took more than 10 s; mend it, or raise --some.setting"
    )
    assert waits.describe(0.0) == []


async def wait_with(waits, error):
    await wait(waits, 1.0, error=error)


def test_an_error_inside_fails_the_stage_a_users_mistake_and_an_end_pass():
    waits = Waits()
    with pytest.raises(StageFailed, match="stage 'learner' failed: OSError: disk full"):
        run(wait_with, waits, OSError("disk full"))
    with pytest.raises(ConfigError, match="set it"):
        run(wait_with, waits, ConfigError("set it"))
    with pytest.raises(SystemExit):
        run(wait_with, waits, SystemExit(3))
    assert waits.describe(0.0) == []


def test_a_cancellation_from_outside_is_no_missed_deadline():
    async def main():
        with trio.move_on_after(3.0) as scope:
            await wait(waits, 9.0)
        assert scope.cancelled_caught

    waits = Waits()
    run(main)
    assert waits.describe(0.0) == []


@pytest.mark.parametrize("in_a_group", [False, True])
def test_a_cancellation_that_escapes_from_its_scope_fails_the_stage_that_let_it(in_a_group):
    async def main():
        with waits.on("learner", "update 3", 10.0, setting="--some.setting"):
            try:
                await escape()
            except trio.Cancelled as stray:
                raise BaseExceptionGroup("", [stray]) if in_a_group else stray from None

    waits = Waits()
    with pytest.raises(StageFailed, match="a cancellation escaped from its scope") as caught:
        run(main)
    assert caught.value.stage == "learner"


def test_what_is_done_in_the_moment_of_the_deadline_is_done():
    async def main():
        async def answer():
            event.set()
            trio.lowlevel.current_clock().jump(1000.0)

        with waits.on("learner", "update 3", 10.0, setting="--some.setting"):
            event = trio.Event()
            trio.lowlevel.spawn_system_task(answer)
            await event.wait()
        await trio.lowlevel.checkpoint()

    waits = Waits()
    run(main)
