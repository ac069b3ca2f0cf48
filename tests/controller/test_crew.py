"""Tasks that do one job after the other."""

import gc
import weakref
from contextvars import ContextVar

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.crew import Crew

SETTING = ContextVar("SETTING", default="none")


class Thing:
    """What a job is about."""


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20))
def test_each_job_is_done_once_by_no_more_tasks_than_jobs_at_once(
    plan: list[tuple[int, int]],
) -> None:
    """Each job starts so long after the one before, and takes so long."""
    began, ended, most = [], [], 0
    tasks = set()

    async def work(number: int, seconds: int) -> None:
        nonlocal most
        began.append(number)
        tasks.add(trio.lowlevel.current_task())
        most = max(most, len(began) - len(ended))
        await trio.sleep(seconds + 0.5)
        ended.append(number)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crew = Crew(nursery, work, name="worker")
            for number, (pause, seconds) in enumerate(plan):
                await trio.sleep(pause)
                crew.start(number, seconds)
            await trio.sleep(10.0)
            assert nursery.child_tasks == tasks
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert sorted(began) == sorted(ended) == list(range(len(plan)))
    assert len(tasks) == most


def test_a_job_may_start_others() -> None:
    async def main() -> None:
        done = []

        async def work(number: int) -> None:
            if number < 3:
                crew.start(number + 1)
            await trio.lowlevel.checkpoint()
            done.append(number)

        async with trio.open_nursery() as nursery:
            crew = Crew(nursery, work, name="worker")
            crew.start(0)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert sorted(done) == [0, 1, 2, 3]

    trio.run(main)


def test_an_error_in_a_job_ends_the_nursery_and_with_it_all_tasks_idle_or_not() -> None:
    async def main() -> None:
        async def work(wrong: bool) -> None:
            if wrong:
                raise OSError("as planned")

        with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="as planned")):
            async with trio.open_nursery() as nursery:
                crew = Crew(nursery, work, name="worker")
                for wrong in (False, False, True):
                    crew.start(wrong)
                    await trio.testing.wait_all_tasks_blocked()

    trio.run(main)


def test_a_job_that_leaves_a_nursery_open_is_an_error() -> None:
    async def main() -> None:
        async def work() -> None:
            await trio.open_nursery().__aenter__()

        with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="Nursery stack corrupted")):
            async with trio.open_nursery() as nursery:
                Crew(nursery, work, name="worker").start()

    trio.run(main)


def test_nothing_of_a_job_is_kept_once_it_is_done() -> None:
    async def main() -> None:
        async def work(thing: Thing) -> None:
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            crew = Crew(nursery, work, name="worker")
            for _ in range(2):
                thing = Thing()
                left = weakref.ref(thing)
                crew.start(thing)
                del thing
                await trio.testing.wait_all_tasks_blocked()
                gc.collect()
                assert left() is None
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_job_sees_the_context_of_who_started_it_and_not_that_of_the_job_before() -> None:
    seen = []

    async def main() -> None:
        async def work(own: str) -> None:
            seen.append(SETTING.get())
            SETTING.set(own)
            await trio.lowlevel.checkpoint()
            seen.append(SETTING.get())

        async with trio.open_nursery() as nursery:
            crew = Crew(nursery, work, name="worker")
            for own in ("a", "b"):
                crew.start(own)
                await trio.testing.wait_all_tasks_blocked()
            SETTING.set("starter's")
            crew.start("c")
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert seen == ["none", "a", "none", "b", "starter's", "c"]
