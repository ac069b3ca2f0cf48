"""Check that an environment keeps the promises that the rollout relies on.

In the spirit of Gymnasium's environment checker: run it in the tests of every environment, made
as in a run: `in_threads` and `in_processes` included.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from numbers import Real
from typing import Any

import trio

from .base import Env, EnvironmentBroken, StepResult, Task
from .check_leaks import Holdings, holdings
from .messages import Message, ToolCall
from .processes import ProcessEnvs
from .rewards.reward import LARGEST_REWARD

PROBES = (
    Message("assistant", ""),
    Message("assistant", "a"),
    Message("assistant", "f(", (ToolCall("f", status="malformed", raw="f("),)),
    Message("assistant", "f(x)", (ToolCall("f", raw="f(x)", argument="x"),)),
    Message("assistant", "", (ToolCall("f", {"x": 1}, raw="f(x=1)"),)),
    Message("assistant", "", (ToolCall("", status="unclosed", raw="<tool_call>"),)),
)
MAX_CHARACTERS = 1_000_000  # of the messages of one call: no context holds as many
_MAX_STEPS = 16
_LEAK_EPISODES = 8

Episode = list[Any]
"""The first messages, and then each answer without its measurements."""


class EnvContractError(AssertionError):
    """An environment breaks a rule of the protocol; the message names the rule."""


async def check_env(
    make: Callable[[], Env],
    tasks: Sequence[Task],
    *,
    probes: Sequence[Message] = PROBES,
    deadline_seconds: float = 60.0,
) -> None:
    """Check an environment on some tasks with some messages of a policy.

    Checked: a factory that makes a new environment each time; tasks that come back from JSON as
    they are, have different ids, and aren't changed; no call that raises or takes too long; first
    messages that are the same for all seeds; roles, types, rewards and measurements that a rollout
    takes, texts of a sane length; answers exactly where the episode goes on; the same episode from
    the same task, seed and turns, in another order and beside another open environment; closing,
    also twice and without a reset; that episodes leave no threads, files or child processes
    behind.

    Measurements may differ between equal episodes, since they may be times.

    Args:
      make: opens one environment.
      tasks: some tasks of it; a few are enough.
      probes: each is repeated until its episode ends, at most 16 times.
      deadline_seconds: of each call.

    Raises:
      EnvContractError: with the rule that is broken.
    """
    with _as_contract_error("make()"):
        _require(make() is not make(), "make() must return a new environment each time")
    tasks = list(tasks)
    _check_tasks(tasks)
    checker = _Checker(make, deadline_seconds)
    async with checker.open():
        pass  # closed without a reset
    for task in tasks:
        await checker.check_reset(task)
    wanted = [(task, probe) for task in tasks for probe in probes]
    first = [await checker.episode(*each) for each in wanted]
    for each, episode in reversed([*zip(wanted, first, strict=True)]):
        _check_same(each[0], episode, await checker.episode(*each), "in another order")
    if wanted:
        await checker.check_two_open(wanted[0], wanted[-1], first[0])
        await checker.check_leaks(*wanted[0])


class _Checker:
    """Calls environments by the rules; whatever they do wrong is an `EnvContractError`."""

    def __init__(self, make: Callable[[], Env], deadline_seconds: float):
        self._make = make
        self._deadline_seconds = deadline_seconds

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Env]:
        """Open one; close it twice."""
        manager = self._make()
        # One scope from opening to closing, as in a run: it may hold a nursery for so long.
        with trio.CancelScope() as life:
            life.deadline = trio.current_time() + self._deadline_seconds
            with _as_contract_error("open"):
                env = await manager.__aenter__()
                _require(env is not None, "opening must return the environment, got None")
            life.deadline = math.inf
            try:
                yield env
            finally:
                life.deadline = trio.current_time() + self._deadline_seconds
                for what in ("close", "a second close"):
                    with _as_contract_error(what):
                        await manager.__aexit__(None, None, None)
        if life.cancelled_caught:
            raise EnvContractError(
                f"opening or closing took more than {self._deadline_seconds:g} s"
            )

    async def episode(self, task: Task, probe: Message) -> Episode:
        """Talk to a fresh environment; return all that it said."""
        async with self.open() as env:
            said: Episode = [await self._reset(env, task, 0)]
            while len(said) <= _MAX_STEPS and not _is_over(said):
                said.append(await self._step(env, probe))
        return said

    async def check_reset(self, task: Task) -> None:
        data = deepcopy(dict(task.data))
        async with self.open() as env:
            starts = [await self._reset(env, task, seed) for seed in (0, 0)]
        async with self.open() as env:
            starts.append(await self._reset(env, task, 0))
        _require(starts[0] == starts[1] == starts[2], f"reset must be deterministic, got {starts}")
        _require(
            dict(task.data) == data, f"reset must not change the task {task.id!r}, got {task.data}"
        )
        async with self.open() as env:
            other = await self._reset(env, task, 1)
        _require(
            other == starts[0],
            "the first messages must be the same for all seeds, since the members of a group are "
            f"compared; task {task.id!r} has {starts[0]} and {other}",
        )

    async def check_two_open(
        self, own: tuple[Task, Message], other: tuple[Task, Message], alone: Episode
    ) -> None:
        """Check that an open environment doesn't notice another one."""
        if isinstance(self._make, ProcessEnvs) and self._make.statistics().processes < 2:
            return
        async with self.open() as env, self.open() as second:
            said: Episode = [await self._reset(env, own[0], 0)]
            between: Episode = [await self._reset(second, other[0], 0)]
            while len(said) <= _MAX_STEPS and not _is_over(said):
                said.append(await self._step(env, own[1]))
                if not _is_over(between):
                    between.append(await self._step(second, other[1]))
        _check_same(own[0], alone, said, "while another environment is open")

    async def check_leaks(self, task: Task, probe: Message) -> None:
        before, started = holdings(), self._started()
        for _ in range(_LEAK_EPISODES):
            await self.episode(task, probe)
        _check_held(before, holdings())
        _require(
            self._started() - started < _LEAK_EPISODES,
            f"each of {_LEAK_EPISODES} episodes needed a process of its own: something is left "
            "of them, a thread or a child process; end it in __exit__",
        )

    def _started(self) -> int:
        make = self._make
        return make.statistics().started_total if isinstance(make, ProcessEnvs) else 0

    async def _reset(self, env: Env, task: Task, seed: int) -> Sequence[Message]:
        messages = await self._call("reset", env.reset, task, seed)
        _check_messages("reset", messages)
        _require(len(messages) > 0, "reset must return at least one message")
        return tuple(messages)

    async def _step(self, env: Env, probe: Message) -> StepResult:
        result = await self._call("step", env.step, probe)
        check_step(result)
        return StepResult(
            tuple(result.messages), result.reward, result.terminated, result.truncated
        )

    async def _call(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        with _as_contract_error(f"{what} with {arguments[0]!r:.300}"):
            with trio.move_on_after(self._deadline_seconds) as scope:
                result = await function(*arguments)
            if not scope.cancel_called:
                return result
            raise EnvContractError(f"{what} took more than {self._deadline_seconds:g} s")


@contextmanager
def _as_contract_error(what: str) -> Iterator[None]:
    try:
        yield
    except EnvContractError:
        raise
    except (Exception, EnvironmentBroken, SystemExit) as error:
        raise EnvContractError(f"{what} raised {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _is_over(said: Episode) -> bool:
    last = said[-1]
    return isinstance(last, StepResult) and (last.terminated or last.truncated)


def _check_tasks(tasks: Sequence[Task]) -> None:
    _require(len(tasks) > 0, "give at least one task to check with")
    ids = [task.id for task in tasks]
    for name in ids:
        _require(isinstance(name, str), f"an id must be text, got {name!r}")
    _require(len(set(ids)) == len(ids), f"tasks must have different ids, got {ids}")
    for task in tasks:
        _check_json(task)


def _check_json(task: Task) -> None:
    data = dict(task.data)
    try:
        back = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvContractError(f"the data of task {task.id!r} must be JSON: {error}") from error
    _require(back == data, f"the data of task {task.id!r}, {data}, comes back from JSON as {back}")


def _check_same(task: Task, first: Episode, second: Episode, when: str) -> None:
    for before, after in zip(first, second, strict=False):
        _require(
            before == after,
            "the same task, seed and turns must give the same episode; chance must come from the "
            f"seed, and nothing be left of other episodes. Task {task.id!r} gave {before}, and "
            f"{when} {after}",
        )


def _check_held(before: Holdings, after: Holdings) -> None:
    for name, count in before.counts.items():
        now = after.counts[name]
        _require(
            now - count < _LEAK_EPISODES,
            f"{_LEAK_EPISODES} episodes left {now - count} {name} behind; close them in __aexit__ "
            f"or __exit__. New: {after.described(name, before)}",
        )


def check_step(result: StepResult) -> None:
    """Check one answer of an environment by itself.

    Raises:
      EnvContractError: with the rule that is broken.
    """
    _require(isinstance(result, StepResult), f"step must return a StepResult, got {result!r:.300}")
    _check_number("reward", result.reward)
    for name in ("terminated", "truncated"):
        value = getattr(result, name)
        _require(isinstance(value, bool), f"{name} must be True or False, got {value!r}")
    is_mapping = isinstance(result.info, Mapping)
    _require(is_mapping, f"info must be a mapping of names to numbers, got {result.info!r:.300}")
    for name, value in result.info.items():
        _require(isinstance(name, str), f"names of info must be text, got {name!r}")
        _check_number(f"info[{name!r}]", value)
    success = result.info.get("success", 0.0)
    _require(0 <= success <= 1, f"info['success'] must be 0 to 1, got {success}")
    _check_messages("step", result.messages)
    over = result.terminated or result.truncated
    _require(
        over is not bool(result.messages),
        "a step must return messages exactly if the episode goes on, "
        f"got {result.messages} with terminated={result.terminated}, truncated={result.truncated}",
    )


def _check_number(name: str, value: Any) -> None:
    is_number = isinstance(value, Real) and value == value  # which NaN is not
    _require(is_number, f"{name} must be a number, got {value!r:.100}")
    most = f"{LARGEST_REWARD:g}"
    fits = abs(value) <= LARGEST_REWARD
    _require(fits, f"{name} must be from -{most} to {most}, got {value!r:.100}")


def _check_messages(call: str, messages: Any) -> None:
    is_list = isinstance(messages, list | tuple)
    _require(is_list, f"{call} must return a list or tuple of messages, got {messages!r:.300}")
    for message in messages:
        _require(isinstance(message, Message), f"expected a Message, got {message!r:.300}")
        _require(
            message.role in ("system", "user", "tool"),
            f"an environment speaks as system, user or tool, got role {message.role!r}",
        )
        _require(isinstance(message.content, str), f"content must be text, got {message!r:.300}")
    length = sum(len(message.content) for message in messages)
    _require(
        length <= MAX_CHARACTERS,
        f"the messages of one {call} have {length} characters, at most {MAX_CHARACTERS} are sane; "
        "cut what tools and programs write",
    )


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise EnvContractError(rule)
