"""A blocked loop is reported, and an episode's call that blocks it is interrupted."""

import contextlib
import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import trio

from headrace.envs import (
    EpisodeRecord,
    Message,
    Reward,
    StepResult,
    Task,
    ToolCall,
    answer_calls,
    tools,
)
from headrace.envs.rewards import scorer
from headrace.pipeline import loop_guard
from headrace.pipeline.loop_guard import LoopBlocked, LoopGuard, describe_stack, foreign_call
from headrace.pipeline.rollout import episode
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.types import EpisodeFailure, FailureKind, Outcome, Trajectory
from tests.controller.harness import RENDERER
from tests.fakes.policy import FakePolicy

GUARDED = episode.__file__
FILES = (GUARDED, scorer.__file__, tools.__file__)
GIVE_UP_SECONDS = 10.0  # far more than anything here takes, for a loaded machine
CONFIG = RolloutConfig(
    group_size=2, max_turns=2, max_turn_tokens=2, max_tokens=32, max_retries=0
)  # fmt: skip


class Env:
    """Calls `hook(call)`, which may block, in each of its calls."""

    def __init__(self, hook: Callable[[str], None]) -> None:
        self.hook = hook
        hook("make")

    async def __aenter__(self) -> "Env":
        self.hook("open")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.hook("close")

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        self.hook("reset")
        return (Message("user", "0"),)

    async def step(self, message: Message) -> StepResult:
        self.hook("step")
        return StepResult(reward=1.0, terminated=True)


def guard(reports: list[str], **settings: object) -> LoopGuard:
    wanted = {"blocked_seconds": 0.1, "interrupt_seconds": 0.2, "guarded_files": FILES}
    return LoopGuard(reports.append, **{**wanted, **settings})  # type: ignore[arg-type]


async def run_episode(hook: Callable[[str], None]) -> Outcome:
    policy = FakePolicy(sample_seconds=lambda request: 0.0)
    rollout = episode.Rollout(lambda: Env(hook), RENDERER, policy.sample, CONFIG)
    return await episode.run_episode(rollout, Task("0"), episode.EpisodeIdentity((0, 0), 0))


def guarded(function: Callable[[], object], watcher: LoopGuard, *, rest: float = 0.2) -> object:
    """Run an async function in a loop with a guard, and a little longer."""

    async def main() -> object:
        async with trio.open_nursery() as nursery:
            await nursery.start(watcher.serve)
            result = await function()  # type: ignore[misc]
            await trio.sleep(rest)
            nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


def blocks(call: str, block: Callable[[], object]) -> Callable[[str], None]:
    def hook(now: str) -> None:
        if now == call:
            block()

    return hook


def sleep() -> None:
    time.sleep(GIVE_UP_SECONDS)


def spin() -> None:
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < give_up:
        pass


def read_pipe() -> None:
    reading, writing = os.pipe()
    timer = threading.Timer(GIVE_UP_SECONDS, os.write, (writing, b"x"))
    timer.start()
    try:
        os.read(reading, 1)
    finally:
        timer.cancel()
        timer.join()
        os.close(reading)
        os.close(writing)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire(timeout=GIVE_UP_SECONDS)


@pytest.mark.parametrize("block", [sleep, spin, read_pipe, wait_for_a_lock])
def test_a_call_that_blocks_is_reported_and_ends_as_a_failed_episode(
    block: Callable[[], object],
) -> None:
    reports: list[str] = []
    began = time.monotonic()
    outcome = guarded(lambda: run_episode(blocks("step", block)), guard(reports))
    assert time.monotonic() - began < GIVE_UP_SECONDS
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.ENV_ERROR
    assert outcome.error.startswith("environment step: LoopBlocked: it blocked the event loop for")
    assert "in_threads(...)" in outcome.error
    first, last = reports[0], reports[-1]
    assert first.startswith("the event loop is blocked for 0.")
    assert "It is interrupted after 0.2 s." in first
    assert first.index(block.__name__) < first.index("Env.step") < first.index(GUARDED)
    assert any("is interrupted" in report.splitlines()[0] for report in reports[1:-1])
    assert last.startswith("the event loop runs again; it was blocked for 0.")


@pytest.mark.parametrize("call", ["make", "open", "reset", "close"])
def test_each_call_of_an_environment_can_be_interrupted(call: str) -> None:
    outcome = guarded(lambda: run_episode(blocks(call, sleep)), guard([]))
    assert isinstance(outcome, EpisodeFailure)
    assert "LoopBlocked" in outcome.error


def test_the_other_episodes_go_on() -> None:
    outcomes: list[Outcome] = []

    async def collect(hook: Callable[[str], None]) -> None:
        outcomes.append(await run_episode(hook))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(5):
                hook = blocks("step", sleep) if number == 2 else lambda call: None
                nursery.start_soon(collect, hook)

    guarded(main, guard([]))
    kinds = sorted(type(outcome).__name__ for outcome in outcomes)
    assert kinds == ["EpisodeFailure"] + ["Trajectory"] * 4


def test_an_exception_that_is_swallowed_comes_again() -> None:
    caught: list[float] = []

    def stubborn() -> None:
        while len(caught) < 3:
            try:
                sleep()
            except LoopBlocked:
                caught.append(time.monotonic())

    reports: list[str] = []
    outcome = guarded(lambda: run_episode(blocks("step", stubborn)), guard(reports))
    assert isinstance(outcome, Trajectory)
    assert all(after - before > 0.1 for before, after in itertools.pairwise(caught))
    assert sum("is interrupted" in report.splitlines()[0] for report in reports) == 3


async def block_without_an_episode() -> str:
    time.sleep(0.6)
    return "whole"


def test_what_is_no_call_of_an_episode_is_only_reported() -> None:
    reports: list[str] = []
    assert guarded(block_without_an_episode, guard(reports)) == "whole"
    assert "block_without_an_episode" in reports[0].splitlines()[1]
    assert "It is no call of an environment" in reports[0]
    assert not any("interrupted" in report.splitlines()[0] for report in reports)


def test_reports_come_at_growing_intervals() -> None:
    reports: list[str] = []
    guarded(block_without_an_episode, guard(reports, blocked_seconds=0.05))
    assert [report.split("\n")[0][:25] for report in reports[:-1]] == [
        "the event loop is blocked"
    ] * (len(reports) - 1)
    assert 2 <= len(reports) - 1 <= 4  # after about 0.05, 0.1, 0.2, 0.4 s
    assert reports[-1].startswith("the event loop runs again; it was blocked for 0.")


@pytest.mark.parametrize("settings", [{"interrupt_seconds": None}, {"guarded_files": ()}])
def test_interrupts_are_optional(settings: dict[str, None]) -> None:
    reports: list[str] = []
    hook = blocks("step", lambda: time.sleep(0.6))
    before = signal.getsignal(loop_guard.SIGNAL)
    watcher = guard(reports, **settings)

    async def main() -> Outcome:
        assert signal.getsignal(loop_guard.SIGNAL) is before
        return await run_episode(hook)

    assert isinstance(guarded(main, watcher), Trajectory)
    assert "is blocked for" in reports[0]
    assert "interrupted after" not in reports[0]


def test_outside_of_the_main_thread_it_only_reports() -> None:
    reports: list[str] = []
    outcomes: list[object] = []
    hook = blocks("step", lambda: time.sleep(0.6))
    thread = threading.Thread(
        target=lambda: outcomes.append(guarded(lambda: run_episode(hook), guard(reports)))
    )
    thread.start()
    thread.join()
    assert isinstance(outcomes[0], Trajectory)
    assert "Env.step" in reports[0]


def test_the_signals_handler_is_put_back() -> None:
    before = signal.getsignal(loop_guard.SIGNAL)
    seen = []

    async def main() -> None:
        seen.append(signal.getsignal(loop_guard.SIGNAL))
        os.kill(os.getpid(), loop_guard.SIGNAL)  # from outside: does no harm
        await trio.sleep(0)

    guarded(main, guard([]), rest=0.0)
    assert seen != [before]
    assert signal.getsignal(loop_guard.SIGNAL) is before


def test_a_signal_that_somebody_else_handles_is_left_alone() -> None:
    got: list[int] = []
    before = signal.signal(loop_guard.SIGNAL, lambda number, frame: got.append(number))
    try:
        hook = blocks("step", lambda: time.sleep(0.6))
        assert isinstance(guarded(lambda: run_episode(hook), guard([])), Trajectory)
        assert got == []
    finally:
        signal.signal(loop_guard.SIGNAL, before)


def test_a_report_that_fails_ends_the_guard() -> None:
    def fail(text: str) -> None:
        raise OSError("no terminal")

    with pytest.raises(BaseExceptionGroup) as caught:
        guarded(block_without_an_episode, LoopGuard(fail, blocked_seconds=0.1))
    (error,) = caught.value.exceptions
    assert isinstance(error, OSError)


def test_a_call_that_keeps_the_interpreters_lock_is_reported_afterwards() -> None:
    reports: list[str] = []

    async def main() -> None:
        ctypes.PyDLL(None).usleep(600_000)

    guarded(main, guard(reports))
    (report,) = reports
    assert report.startswith("the event loop was blocked for 0.")
    assert "nobody saw where" in report


@pytest.mark.parametrize("wrong", [{"blocked_seconds": 0.0}, {"interrupt_seconds": -1.0}])
def test_numbers_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        guard([], **wrong)


def call_through(*files: str) -> tuple[object, ...]:
    """Return the foreign call of a stack of functions in such files, the outermost first."""
    found: list[object] = []

    def innermost() -> None:
        frame = sys._getframe(1)
        found.append((frame, foreign_call(frame, FILES)))

    call: Callable[[], None] = innermost
    for file in reversed(files):
        name = "__del__" if file == "__del__" else "function"
        scope: dict[str, object] = {"call": call, "__name__": "pdb" if file == "pdb" else "x"}
        exec(compile(f"def {name}():\n  call()", file, "exec"), scope)
        call = scope[name]  # type: ignore[assignment]
    call()
    ((frame, foreign),) = found  # type: ignore[misc]
    return frame, foreign


@pytest.mark.parametrize("block", [sleep, spin])
def test_a_reward_that_blocks_is_no_score(block: Callable[[], object]) -> None:
    async def blocking(record: EpisodeRecord) -> float:
        block()
        return 0.0

    reports: list[str] = []
    scoring = scorer.Scorer([Reward("judge", blocking, in_loop=True)])
    record = EpisodeRecord(Task("0"), ())

    async def main() -> None:
        with pytest.raises(scorer.RewardFailed, match=r"'judge'.*LoopBlocked: it blocked the"):
            await scoring.score(record)

    guarded(main, guard(reports))
    assert "blocking" in reports[0]


@pytest.mark.parametrize("block", [sleep, spin])
def test_a_tool_that_blocks_beside_others_is_interrupted(block: Callable[[], object]) -> None:
    @tools.tool
    def blocking() -> str:
        block()
        return "done"

    calls = [ToolCall("blocking"), ToolCall("other")]

    async def main() -> None:
        with pytest.raises(LoopBlocked):
            await answer_calls(calls, [blocking])

    guarded(main, guard([]))


def test_only_foreign_code_called_by_the_guarded_file_is_found() -> None:
    frame, foreign = call_through(GUARDED, "env.py")
    assert foreign is frame
    frame, foreign = call_through("pipeline.py", GUARDED, "env.py", "client.py")
    assert foreign is frame.f_back  # type: ignore[attr-defined]
    pipeline = loop_guard.__file__.replace("loop_guard", "sampler/service")
    # A tool of an environment is a part of its call; one beside others has a task of its own.
    frame, foreign = call_through(GUARDED, "env.py", tools.__file__, "tool.py")
    assert foreign is frame.f_back.f_back  # type: ignore[attr-defined]
    frame, foreign = call_through(trio.__file__, tools.__file__, "tool.py")
    assert foreign is frame
    for stack in [
        ("env.py",),
        (GUARDED,),
        (GUARDED, pipeline),
        (GUARDED, pipeline, "callback.py"),
        (GUARDED, "env.py", trio.__file__),
        (GUARDED, "env.py", trio.__file__, "callback.py"),
        (GUARDED, "env.py", "pdb"),
        (GUARDED, "env.py", "__del__"),
        (GUARDED, "env.py", "__del__", "client.py"),
    ]:
        assert call_through(*stack)[1] is None, stack


def test_a_stack_is_listed_from_inside_to_the_guarded_file() -> None:
    frame, _ = call_through("pipeline.py", GUARDED, "env.py", "client.py")
    lines = describe_stack(frame, FILES).splitlines()  # type: ignore[arg-type]
    assert [line.split("(")[1].split(":")[0] for line in lines] == ["client.py", "env.py", GUARDED]


def test_each_call_has_its_own_time() -> None:
    hook = lambda call: time.sleep(0.3 if call in ("make", "open", "reset") else 0.0)  # noqa: E731
    reports: list[str] = []
    outcome = guarded(lambda: run_episode(hook), guard(reports, interrupt_seconds=0.6))
    assert isinstance(outcome, Trajectory)
    assert len(reports) >= 2


@contextlib.contextmanager
def delayed() -> Iterator[None]:
    """Keep the signal from being delivered inside, so that it comes afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {loop_guard.SIGNAL})
    try:
        yield
    finally:
        assert loop_guard.SIGNAL in signal.sigpending()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {loop_guard.SIGNAL})


def test_a_signal_that_comes_late_does_not_interrupt_another_call() -> None:
    late = contextlib.ExitStack()

    def hook(call: str) -> None:
        if call == "step":
            late.enter_context(delayed())
            time.sleep(1.0)
        if call == "close":  # the next call of foreign code, before the loop's next beat
            late.close()

    assert isinstance(guarded(lambda: run_episode(hook), guard([])), Trajectory)


class Thinks(Env):
    async def step(self, message: Message) -> StepResult:
        with delayed():
            time.sleep(1.0)
            await trio.sleep(0.3)  # the loop beats
        return await super().step(message)


def test_a_signal_that_comes_late_does_not_interrupt_a_call_that_no_longer_blocks() -> None:
    policy = FakePolicy(sample_seconds=lambda request: 0.0)
    rollout = episode.Rollout(lambda: Thinks(lambda call: None), RENDERER, policy.sample, CONFIG)
    identity = episode.EpisodeIdentity((0, 0), 0)
    outcome = guarded(lambda: episode.run_episode(rollout, Task("0"), identity), guard([]))
    assert isinstance(outcome, Trajectory)


@contextlib.contextmanager
def eager_threads() -> Iterator[None]:
    """Switch between threads as often as possible, to find what depends on when they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_calls_that_end_at_the_moment_of_their_interrupt_harm_nobody_else() -> None:
    numbers = itertools.count()

    def block(call: str) -> None:
        if call == "step":  # around the 0.04 s after which it is interrupted
            give_up = time.monotonic() + 0.03 + next(numbers) % 10 * 0.003
            while time.monotonic() < give_up:
                time.sleep(0.0005)

    async def main() -> list[Outcome]:
        return [await run_episode(block) for _ in range(40)]

    with eager_threads():
        watcher = guard([], blocked_seconds=0.02, interrupt_seconds=0.03)
        outcomes = guarded(main, watcher)
    for outcome in outcomes:  # type: ignore[attr-defined]
        assert isinstance(outcome, Trajectory) or "environment step: LoopB" in outcome.error
