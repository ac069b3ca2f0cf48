"""The checker finds each kind of broken environment."""

import contextlib
import math
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import pytest
import trio

from headrace.envs import (
    EnvContractError,
    EnvironmentBroken,
    Message,
    StepResult,
    Task,
    check_env,
    in_processes,
    in_threads,
)

TASKS = [Task("a"), Task("b")]
HELLO = Message("user", "hello")


class FakeEnv:
    """Says `starts` in turn at each reset and `result` at each step."""

    def __init__(self, starts: Sequence[Sequence[Message]], result: Any) -> None:
        self._starts = starts
        self._result = result
        self._resets = 0

    async def __aenter__(self) -> "FakeEnv":
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        self._resets += 1
        return self._starts[(self._resets - 1) % len(self._starts)]

    async def step(self, message: Message) -> StepResult:
        return self._result


def check(
    result: Any, *, starts: Sequence[Sequence[Message]] = ((HELLO,),), tasks: Any = TASKS
) -> None:
    def make() -> FakeEnv:
        return FakeEnv(starts, result)

    trio.run(check_env, make, tasks)


@pytest.mark.parametrize(
    "result", [StepResult((HELLO,)), StepResult(terminated=True), StepResult(truncated=True)]
)
def test_accepts_a_sound_environment(result: StepResult) -> None:
    check(result)


@pytest.mark.parametrize(
    ("result", "rule"),
    [
        (None, "must return a StepResult"),
        (StepResult(), "messages exactly if"),
        (StepResult((HELLO,), terminated=True), "messages exactly if"),
        (StepResult((HELLO,), reward=math.nan), "reward must be a number, got nan"),
        (StepResult((HELLO,), info={"x": math.inf}), "'x'.* must be from"),
        (StepResult((HELLO,), info={"success": 1.5}), "0 to 1, got 1.5"),
        (StepResult((Message("assistant", "x"),)), "got role 'assistant'"),
        (
            StepResult((HELLO,), reward=10**400),
            "reward must be from -1e[+]06 to 1e[+]06, got 1000",
        ),
        (
            StepResult((HELLO,), reward=-2e6),
            "reward must be from -1e[+]06 to 1e[+]06, got -2000000",
        ),
        (StepResult((HELLO,), info={"x": 2e6}), r"info\['x'\] must be from"),
        (StepResult((HELLO,), info=None), "info must be a mapping of names to numbers, got None"),
    ],
)
def test_finds_a_broken_step(result: Any, rule: str) -> None:
    with pytest.raises(EnvContractError, match=rule):
        check(result)


def test_finds_a_broken_reset() -> None:
    end = StepResult(terminated=True)
    broken: dict[str, Sequence[Sequence[Message]]] = {
        "deterministic": [(HELLO,), (Message("user", "other"),)],
        "at least one message": [()],
        "got role 'assistant'": [(Message("assistant", "x"),)],
    }
    for rule, starts in broken.items():
        with pytest.raises(EnvContractError, match=rule):
            check(end, starts=starts)


def test_finds_broken_tasks() -> None:
    end = StepResult(terminated=True)
    with pytest.raises(EnvContractError, match="different ids"):
        check(end, tasks=[Task("a"), Task("a")])
    with pytest.raises(EnvContractError, match="must be JSON"):
        check(end, tasks=[Task("a", {"x": {1, 2}})])
    deep: list[object] = []
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(EnvContractError, match="must be JSON"):
        check(end, tasks=[Task("a", {"x": deep})])
    for changed in ({1: "a"}, {"x": (1, 2)}):
        with pytest.raises(EnvContractError, match="comes back from JSON as"):
            check(end, tasks=[Task("a", changed)])
    with pytest.raises(EnvContractError, match="an id must be text, got 3"):
        check(end, tasks=[Task(3)])  # type: ignore[arg-type]
    with pytest.raises(EnvContractError, match="at least one task"):
        check(end, tasks=iter([]))


def test_finds_a_factory_that_raises_and_an_opening_that_returns_nothing() -> None:
    class Nothing(FakeEnv):
        async def __aenter__(self) -> Any:
            return None

    with pytest.raises(EnvContractError, match=r"make\(\) raised OSError: no licence"):
        trio.run(check_env, fail_to_make, TASKS)
    with pytest.raises(EnvContractError, match="opening must return the environment, got None"):
        trio.run(check_env, lambda: Nothing(((HELLO,),), None), TASKS)


def fail_to_make() -> Any:
    raise OSError("no licence")


def test_finds_an_answer_after_the_deadline_by_a_call_that_kept_its_cancellation() -> None:
    class Stubborn(FakeEnv):
        async def step(self, message: Message) -> StepResult:
            with contextlib.suppress(trio.Cancelled):
                await trio.sleep_forever()
            return StepResult(terminated=True)

    def make() -> FakeEnv:
        return Stubborn(((HELLO,),), None)

    with pytest.raises(EnvContractError, match=r"step took more than 0\.1 s"):
        trio.run(lambda: check_env(make, TASKS, deadline_seconds=0.1))


def test_finds_a_shared_environment_and_a_second_close_that_fails() -> None:
    class CloseOnce(FakeEnv):
        closed = False

        async def __aexit__(self, *error: object) -> None:
            if self.closed:
                raise RuntimeError("closed twice")
            self.closed = True

    end = StepResult(terminated=True)
    shared = FakeEnv(((HELLO,),), end)
    make_shared: Callable[[], FakeEnv] = lambda: shared  # noqa: E731
    with pytest.raises(EnvContractError, match="new environment each time"):
        trio.run(check_env, make_shared, TASKS)
    with pytest.raises(EnvContractError, match="a second close raised RuntimeError: closed twice"):
        trio.run(check_env, lambda: CloseOnce(((HELLO,),), end), TASKS)


# Environments that keep the protocol in each answer, and break it all the same. Classes of this
# module, so that worker processes can import them.


RELEASE = threading.Event()  # of threads that hang, at the end of a test


@pytest.fixture
def release() -> Iterator[None]:
    RELEASE.clear()
    yield
    RELEASE.set()
    give_up = time.monotonic() + 4.0
    while any(t.name == "mine" or t.name.startswith("Hangs") for t in threading.enumerate()):
        assert time.monotonic() < give_up
        time.sleep(0.01)


class Quiet:
    """A synchronous environment of one turn; the others below change one thing."""

    def __enter__(self) -> "Quiet":
        return self

    def __exit__(self, *error: object) -> None: ...

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [HELLO]

    def step(self, message: Message) -> Any:
        return StepResult(reward=1.0, terminated=True)


class Unseeded(Quiet):
    def step(self, message: Message) -> StepResult:
        return StepResult(reward=random.random(), terminated=True)


class SeedInQuestion(Quiet):
    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", str(seed))]


class Counts(Quiet):
    episodes = 0

    def step(self, message: Message) -> StepResult:
        Counts.episodes += 1
        return StepResult((Message("user", str(Counts.episodes)),))


class Shared(Quiet):
    """Environments that are open at the same time share what was asked."""

    asked = ""

    def reset(self, task: Task, seed: int) -> list[Message]:
        Shared.asked = task.id
        return [HELLO]

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=float(ord(Shared.asked)), terminated=True)


class Changes(Quiet):
    """Changes what it is given."""

    def reset(self, task: Task, seed: int) -> list[Message]:
        task.data.setdefault("asked", []).append(1)  # type: ignore[attr-defined]
        return [HELLO]


class Leaves(Quiet):
    def step(self, message: Message) -> StepResult:
        sys.exit(0)


class Raises(Quiet):
    def step(self, message: Message) -> StepResult:
        raise ValueError(f"no such answer {message.content!r}")


class Breaks(Quiet):
    def reset(self, task: Task, seed: int) -> list[Message]:
        raise EnvironmentBroken("no server")


class Hangs(Quiet):
    def step(self, message: Message) -> StepResult:
        RELEASE.wait(3.0)
        return StepResult(terminated=True)


class HangsInClosing(Quiet):
    def __exit__(self, *error: object) -> None:
        RELEASE.wait(3.0)


class Floods(Quiet):
    def step(self, message: Message) -> StepResult:
        return StepResult((Message("tool", "x" * 2_000_000),))


class Generates(Quiet):
    def reset(self, task: Task, seed: int) -> Any:
        yield HELLO


class TextReward(Quiet):
    def step(self, message: Message) -> Any:
        return StepResult(reward="1", terminated=True)  # type: ignore[arg-type]


class NoBool(Quiet):
    def step(self, message: Message) -> Any:
        return StepResult(terminated=None)  # type: ignore[arg-type]


class Exits(Quiet):
    def step(self, message: Message) -> StepResult:
        os._exit(7)


class LeavesAThread(Quiet):
    def __enter__(self) -> "LeavesAThread":
        threading.Thread(target=RELEASE.wait, args=(9.0,), name="mine", daemon=True).start()
        return self


class LeavesAFile(Quiet):
    files: ClassVar[list[int]] = []

    def __enter__(self) -> "LeavesAFile":
        self.files.append(os.open("/dev/null", os.O_RDONLY))
        return self


IN_THREADS = [
    (Unseeded, "chance must come from the seed"),
    (SeedInQuestion, "must be the same for all seeds"),
    (Counts, "nothing be left of other episodes"),
    (Shared, "while another environment is open"),
    (Changes, "reset must not change the task 'a'"),
    (Leaves, "step with .* raised RuntimeError: step raised SystemExit: 0"),
    (Raises, "step with .* raised ValueError: no such answer ''"),
    (Breaks, "reset with .* raised EnvironmentBroken: no server"),
    (Hangs, r"step took more than 0\.3 s"),
    (HangsInClosing, r"closing took more than 0\.3 s"),
    (Floods, "2000000 characters, at most 1000000 are sane"),
    (Generates, "reset must return a list or tuple of messages"),
    (TextReward, "reward must be a number, got '1'"),
    (NoBool, "terminated must be True or False, got None"),
    (LeavesAThread, "8 episodes left 8 threads behind.*mine"),
    (LeavesAFile, "8 episodes left 8 open files behind.*/dev/null"),
]


@pytest.mark.parametrize(("kind", "rule"), IN_THREADS)
@pytest.mark.usefixtures("release")
def test_finds_a_bad_environment_in_threads(kind: type[Quiet], rule: str) -> None:
    make = in_threads(kind, grace_seconds=0.1)
    with pytest.raises(EnvContractError, match=rule):
        trio.run(lambda: check_env(make, TASKS, deadline_seconds=0.3))
    for fd in LeavesAFile.files:
        os.close(fd)
    LeavesAFile.files.clear()


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Exits, "step with .* raised WorkerProcessError: .*exited with status 7"),
        pytest.param(
            LeavesAThread,
            "each of 8 episodes needed a process of its own",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_finds_a_bad_environment_in_processes(kind: type[Quiet], rule: str) -> None:
    make = in_processes(kind, processes=1)
    with pytest.raises(EnvContractError, match=rule):
        trio.run(lambda: check_env(make, TASKS[:1], probes=[Message("assistant", "a")]))


def test_accepts_sound_ones_in_threads_and_with_a_nursery() -> None:
    class Nursery(FakeEnv):
        async def __aenter__(self) -> "Nursery":
            self._exits = AsyncExitStack()
            self.nursery = await self._exits.enter_async_context(trio.open_nursery())
            self.nursery.start_soon(trio.sleep_forever)
            return self

        async def __aexit__(self, *error: object) -> None:
            self.nursery.cancel_scope.cancel()
            await self._exits.aclose()

    trio.run(check_env, in_threads(Quiet), TASKS)
    trio.run(check_env, lambda: Nursery(((HELLO,),), StepResult(terminated=True)), TASKS)
