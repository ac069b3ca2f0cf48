"""The checker finds each kind of broken environment."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from headrace.envs import EnvContractError, Message, StepResult, Task, check_env

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
        (StepResult((HELLO,), reward=math.nan), "reward must be finite"),
        (StepResult((HELLO,), info={"x": math.inf}), "'x'.* must be finite"),
        (StepResult((HELLO,), info={"success": 1.5}), "0 to 1, got 1.5"),
        (StepResult((Message("assistant", "x"),)), "got role 'assistant'"),
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
    with pytest.raises(RuntimeError, match="closed twice"):
        trio.run(check_env, lambda: CloseOnce(((HELLO,),), end), TASKS)
