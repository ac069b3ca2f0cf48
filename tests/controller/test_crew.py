"""Tasks that do one job after the other."""

import gc
import signal
import weakref
from contextvars import ContextVar

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline import crew
from headrace.pipeline.crew import Crew

SETTING = ContextVar("SETTING", default="none")
HELD: ContextVar["Thing"] = ContextVar("HELD")


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
            workers = Crew(nursery, work, name="worker")
            for number, (pause, seconds) in enumerate(plan):
                await trio.sleep(pause)
                workers.start(number, seconds)
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
                workers.start(number + 1)
            await trio.lowlevel.checkpoint()
            done.append(number)

        async with trio.open_nursery() as nursery:
            workers = Crew(nursery, work, name="worker")
            workers.start(0)
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
                workers = Crew(nursery, work, name="worker")
                for wrong in (False, False, True):
                    workers.start(wrong)
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
            workers = Crew(nursery, work, name="worker")
            for _ in range(2):
                thing = Thing()
                left = weakref.ref(thing)
                workers.start(thing)
                del thing
                await trio.testing.wait_all_tasks_blocked()
                gc.collect()
                assert left() is None
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_job_sees_the_context_of_who_made_the_crew_and_nothing_of_other_jobs() -> None:
    found, kept = [], []

    async def main() -> None:
        async def work(own: str) -> None:
            found.append(SETTING.get())
            SETTING.set(own)
            if own == "c":
                for other in ("by a new task", "by another"):
                    workers.start(other)
            await trio.lowlevel.checkpoint()
            kept.append(SETTING.get())

        SETTING.set("maker's")
        async with trio.open_nursery() as nursery:
            workers = Crew(nursery, work, name="worker")
            SETTING.set("changed since")
            for own in ("a", "b", "c"):
                workers.start(own)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert found == ["maker's"] * 5
    assert sorted(kept) == ["a", "b", "by a new task", "by another", "c"]


def test_an_idle_task_keeps_nothing_that_a_job_put_into_a_context_variable() -> None:
    async def main() -> None:
        left = []

        async def work() -> None:
            thing = Thing()
            HELD.set(thing)
            left.append(weakref.ref(thing))

        async with trio.open_nursery() as nursery:
            Crew(nursery, work, name="worker").start()
            await trio.testing.wait_all_tasks_blocked()
            gc.collect()
            assert left[0]() is None
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("moment", ["reschedule", "wait_task_rescheduled"])
def test_a_ctrl_c_at_an_odd_moment_ends_the_run_and_breaks_nothing(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may be idle without waiting, or wait without being idle."""
    done = []

    async def main() -> None:
        async def work(number: int) -> None:
            done.append(number)

        async with trio.open_nursery() as nursery:
            workers = Crew(nursery, work, name="worker")
            workers.start(0)
            workers.start(1)
            await trio.testing.wait_all_tasks_blocked()
            interrupt_before(moment, monkeypatch)
            for number in (2, 3):
                workers.start(number)
            await trio.sleep_forever()

    with pytest.RaisesGroup(KeyboardInterrupt, flatten_subgroups=True, allow_unwrapped=True):
        trio.run(main)
    assert sorted(done) == [0, 1, 2, 3]


def interrupt_before(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(crew, moment)

    def interrupted(*args: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(crew, moment, interrupted)
