"""Synchronous environments in threads: what hangs costs a thread, and not the run."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from headrace.envs import (
    EnvConfig,
    EnvSpec,
    Message,
    Task,
    ThreadStatistics,
    TooManyHungThreads,
    build_env,
    check_env,
    in_threads,
)
from headrace.envs.worker_threads import ThreadCall, WorkerThreads
from tests.fakes import sync_env
from tests.fakes.sync_env import (
    GIVE_UP_SECONDS,
    TASK,
    TURN,
    Books,
    Fake,
    fakes,
    hang_in_step,
    run,
    talk,
    until,
    wait_until,
)


@pytest.fixture
def books() -> Iterator[Books]:
    """Lets all threads go at the end and waits for them."""
    books = Books()
    yield books
    books.release.set()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("Fake.")])
    assert books.opened == books.closed
    assert books.overlaps == 0


def test_it_keeps_the_protocol(books: Books) -> None:
    make = in_threads(fakes(books))
    trio.run(check_env, make, [Task("a"), Task("b")])
    assert books.opened == books.closed > 0
    assert make.statistics() == ThreadStatistics(64, 0, 0, 0)


USER_MODULE = """
from headrace.envs import EnvSpec, Message, StepResult, Task, in_threads

class Shout:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def reset(self, task, seed):
        return [Message("user", task.data["text"])]
    def step(self, message):
        return StepResult(reward=float(message.content == "HI"), terminated=True)

def tasks(split, count, seed):
    return [Task(f"{split}-{n}", {"text": "hi"}) for n in range(count)]

SPEC = EnvSpec(make=in_threads(Shout), tasks=tasks, demonstrate=None, best_reward=1.0)
"""


def test_a_recipe_can_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shout_in_threads.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    spec: EnvSpec = build_env(EnvConfig("shout_in_threads:SPEC"))
    sys.modules.pop("shout_in_threads")
    trio.run(check_env, spec.make, spec.tasks("train", 2, 0))

    async def episode() -> float:
        async with spec.make() as env:
            await env.reset(spec.tasks("train", 1, 0)[0], 0)
            return (await env.step(Message("assistant", "HI"))).reward

    assert trio.run(episode) == 1.0


def test_calls_run_in_threads_named_after_environment_and_call(books: Books) -> None:
    run(partial(talk, in_threads(fakes(books), name="Fake")))
    assert [call for call, _, _ in books.threads] == ["open", "reset", "step", "close"]
    for call in ("open", "reset", "step", "close"):
        assert books.names(call) == [f"Fake.{call}"]
        assert threading.get_ident() not in books.idents(call)
    assert in_threads(Fake)._threads.name == "Fake"  # type: ignore[arg-type]


def test_errors_come_out_and_a_failed_opening_is_not_closed(books: Books) -> None:
    def refuse(call: str) -> None:
        raise OSError(call)

    with pytest.raises(OSError, match="open"):
        trio.run(talk, in_threads(fakes(books, refuse)))
    assert books.closed == 0

    async def unopened() -> None:
        await in_threads(fakes(books), name="Fake")().step(TURN)

    with pytest.raises(RuntimeError, match="Fake isn't open; use it in an async with block"):
        trio.run(unopened)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"threads": 0}, "threads must be >= 1, got 0"), ({"max_abandoned": -1}, ">= 0, got -1")],
)
def test_numbers_out_of_range(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        in_threads(Fake, **wrong)  # type: ignore[arg-type]


def test_throughput_returns_after_the_deadline_of_calls_that_hang(books: Books) -> None:
    threads = 4
    meeting = threading.Barrier(threads)  # passes only when as many calls run at once

    def hang(call: str) -> None:
        if call == "step":
            books.block()

    def meet(call: str) -> None:
        if call == "step":
            meeting.wait(GIVE_UP_SECONDS)

    hook = hang
    make = in_threads(lambda: Fake(books, hook), threads=threads, max_abandoned=3, name="Fake")

    async def main() -> None:
        nonlocal hook
        async with trio.open_nursery() as nursery:
            for _ in range(threads - 1):
                nursery.start_soon(talk, make, 0.1)
        assert make.statistics() == ThreadStatistics(threads, 0, threads - 1, threads - 1)
        hook = meet
        async with trio.open_nursery() as nursery:
            for _ in range(3 * threads):
                nursery.start_soon(talk, make)
        assert make.statistics() == ThreadStatistics(threads, 0, threads - 1, threads - 1)
        books.release.set()
        await until(lambda: make.statistics().abandoned == 0)
        assert make.statistics().abandoned_total == threads - 1

    run(main)


def test_abandoned_threads_are_replaced_so_many_times_and_then_calls_wait(books: Books) -> None:
    pool = WorkerThreads("Fake", threads=3, max_abandoned=4, hint="")
    scopes = [trio.CancelScope() for _ in range(12)]
    begun: list[int] = []

    def block(number: int) -> None:
        begun.append(number)
        books.block()

    async def call(number: int) -> None:
        with scopes[number]:
            await ThreadCall(pool, "step", partial(block, number)).result()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(len(scopes)):
                nursery.start_soon(call, number)
            for most in (3, 6, 7, 7):
                await until(lambda most=most: len(begun) == most)  # type: ignore[misc]
                assert pool.statistics().busy == most - pool.statistics().abandoned <= 3
                for number in begun:  # long before a deadline: nothing counts as hung
                    scopes[number].cancel()
                await trio.sleep(0.05)
            assert pool.statistics() == ThreadStatistics(3, 0, 7, 7)
            books.release.set()
        assert sorted(begun) == list(range(len(scopes)))

    run(main)


def test_an_opening_that_ends_late_is_closed_by_its_own_thread(books: Books) -> None:
    def hang(call: str) -> None:
        if call == "open":
            books.block()

    make = in_threads(fakes(books, hang), name="Fake")

    async def main() -> None:
        with trio.move_on_after(0.1) as scope:
            await make().__aenter__()
        assert scope.cancelled_caught
        assert (books.opened, books.closed) == (0, 0)
        books.release.set()
        await until(lambda: books.closed == 1)
        assert books.idents("open") == books.idents("close")
        await until(lambda: make.statistics().abandoned == 0)

    run(main)


def test_an_opening_cancelled_early_is_waited_for_and_closed(books: Books) -> None:
    entered = threading.Event()

    def slow(call: str) -> None:
        if call == "open":
            entered.set()
            time.sleep(0.1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_threads(fakes(books, slow), name="Fake")().__aenter__)
            await until(entered.is_set)
            nursery.cancel_scope.cancel()
        assert (books.opened, books.closed) == (1, 1)

    run(main)


def test_after_an_abandoned_call_its_thread_closes_and_nobody_else_calls(books: Books) -> None:
    def hang(call: str) -> None:
        if call == "step":
            books.block()

    async def main() -> None:
        async with in_threads(fakes(books, hang), name="Fake")() as env:
            await env.reset(TASK, 0)
            with trio.move_on_after(0.1):
                await env.step(TURN)
            with pytest.raises(RuntimeError, match="can't be used after a call that was cancel"):
                await env.step(TURN)
        assert books.closed == 0
        books.release.set()
        await until(lambda: books.closed == 1)
        assert books.idents("step") == books.idents("close")

    run(main)


def test_closing_waits_for_a_call_that_was_cancelled_before_its_deadline(books: Books) -> None:
    entered = threading.Event()

    def slow(call: str) -> None:
        if call == "step":
            entered.set()
            time.sleep(0.1)

    async def stop(scope: trio.CancelScope) -> None:
        await until(entered.is_set)
        scope.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery, in_threads(fakes(books, slow))() as env:
            with trio.fail_after(GIVE_UP_SECONDS), trio.CancelScope() as scope:
                nursery.start_soon(stop, scope)
                await env.step(TURN)
        assert books.closed == 1

    run(main)


def test_closing_needs_no_place_and_happens_even_when_cancelled(books: Books) -> None:
    make = in_threads(
        fakes(books, partial(hang_in_step, books)), threads=1, max_abandoned=0, name="Fake"
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery, make(), make() as env:
            nursery.start_soon(env.step, TURN)  # has the only place, for ever
            await until(lambda: make.statistics().busy == 1)
            nursery.cancel_scope.cancel()
        await until(lambda: books.closed == 1)

    run(main)


def test_what_was_cancelled_while_it_waited_for_a_place_never_runs(books: Books) -> None:
    def hang(call: str) -> None:
        if call == "step":
            books.block()

    make = in_threads(fakes(books, hang), threads=1, max_abandoned=1, name="Fake")

    async def main() -> None:
        async with make() as first, make() as second, trio.open_nursery() as nursery:
            nursery.start_soon(first.step, TURN)
            await until(lambda: books.names("step") != [])
            with trio.move_on_after(0.05) as scope:
                await second.step(TURN)
            assert scope.cancelled_caught
            assert make.statistics() == ThreadStatistics(1, 1, 0, 0)
            books.release.set()
            await second.step(TURN)  # it can still be used
        assert len(books.names("step")) == 2

    run(main)


def test_law_16_cancelled_anywhere_everything_is_closed_and_nothing_overlaps(books: Books) -> None:
    rng = random.Random(0)
    make = in_threads(
        fakes(books, lambda call: time.sleep(rng.random() * 0.01)),
        threads=5, max_abandoned=10, name="Fake",
    )  # fmt: skip

    async def episode(seconds: float) -> None:
        with trio.move_on_after(seconds):
            async with make() as env:
                await env.reset(TASK, 0)
                await env.step(TURN)

    async def main() -> None:
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for _ in range(15):
                    nursery.start_soon(episode, rng.random() * 0.04)

    run(main)
    wait_until(lambda: make.statistics().abandoned == make.statistics().busy == 0)
    assert books.opened == books.closed > 0


def test_too_many_calls_that_hang_are_an_error_that_says_where(books: Books) -> None:
    make = in_threads(
        fakes(books, partial(hang_in_step, books)), threads=4, max_abandoned=2, name="Fake"
    )

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(talk, make, 0.2)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main)
    (error,) = leaves(caught.value)  # once, although two calls were too many
    assert isinstance(error, TooManyHungThreads)
    message = str(error)
    assert "threads of Fake hang in calls that missed their deadline, at most 2 may" in message
    assert "3 in Fake.step" in message
    assert "inside Condition.wait" in message
    assert f"{sync_env.__file__}:" in message
    assert "give what blocks a timeout of its own" in message
    assert "max_abandoned of in_threads (now 2)" in message


def test_the_next_call_finds_what_hangs_too(books: Books) -> None:
    make = in_threads(
        fakes(books, partial(hang_in_step, books)), threads=4, max_abandoned=0, name="Fake"
    )

    async def cancel_when_it_runs(scope: trio.CancelScope) -> None:
        await until(lambda: make.statistics().busy == 1)
        scope.cancel()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(0.3), trio.CancelScope() as scope:
                async with make() as env:
                    nursery.start_soon(cancel_when_it_runs, scope)
                    await env.step(TURN)
        await trio.sleep(0.4)  # until the deadline of what was cancelled before
        with pytest.raises(TooManyHungThreads):
            await make().__aenter__()

    run(main)


def test_calls_cancelled_before_their_deadlines_do_not_hang(books: Books) -> None:
    def slow(call: str) -> None:
        time.sleep(0.2 if call == "step" else 0.0)

    make = in_threads(fakes(books, slow), threads=8, max_abandoned=2, name="Fake")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(talk, make)
            await until(lambda: len(books.names("step")) == 8)
            nursery.cancel_scope.cancel()
        assert make.statistics().abandoned_total == 8
        async with make():  # waits for a thread to end, and for no error
            pass

    run(main)


def test_a_factory_outlives_a_run_and_counts_what_the_run_left(books: Books) -> None:
    make = in_threads(
        fakes(books, partial(hang_in_step, books)), threads=1, max_abandoned=2, name="Fake"
    )
    for runs in (1, 2):
        run(partial(talk, make, 0.05))
        assert make.statistics() == ThreadStatistics(1, 0, runs, runs)
    books.release.set()
    wait_until(lambda: make.statistics().abandoned == 0)
    run(partial(talk, make))


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
