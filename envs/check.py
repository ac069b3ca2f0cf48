"""Check that an environment keeps the promises that the rollout relies on.

In the spirit of Gymnasium's environment checker: run it in the tests of every environment.
"""

import json
import math
from collections.abc import Callable, Sequence

from .base import Env, StepResult, Task
from .messages import Message, ToolCall

PROBES = (
    Message("assistant", ""),
    Message("assistant", "a"),
    Message("assistant", "f(", (ToolCall("f", status="malformed", raw="f("),)),
    Message("assistant", "f(x)", (ToolCall("f", raw="f(x)", argument="x"),)),
    Message("assistant", "", (ToolCall("f", {"x": 1}, raw="f(x=1)"),)),
    Message("assistant", "", (ToolCall("", status="unclosed", raw="<tool_call>"),)),
)
_MAX_STEPS = 16


class EnvContractError(AssertionError):
    """An environment breaks a rule of the protocol; the message names the rule."""


async def check_env(
    make: Callable[[], Env], tasks: Sequence[Task], *, probes: Sequence[Message] = PROBES
) -> None:
    """Check an environment on some tasks with some messages of a policy.

    Checked: a factory that makes a new environment each time, tasks that are JSON and have
    different ids, a reset that is deterministic, roles, finite rewards and measurements,
    answers exactly where the episode goes on, and closing, also twice and without a reset.

    Args:
      make: opens one environment.
      tasks: some tasks of it; a few are enough.
      probes: each is repeated until its episode ends, at most 16 times.

    Raises:
      EnvContractError: with the rule that is broken.
    """
    _require(make() is not make(), "make() must return a new environment each time")
    ids = [task.id for task in tasks]
    _require(len(set(ids)) == len(ids), f"tasks must have different ids, got {ids}")
    async with make():
        pass  # closed without a reset
    for task in tasks:
        _check_json(task)
        await _check_reset(make, task)
        for probe in probes:
            await _check_episode(make, task, probe)


def _check_json(task: Task) -> None:
    try:
        json.dumps(dict(task.data), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EnvContractError(f"the data of task {task.id!r} must be JSON: {error}") from error


async def _check_reset(make: Callable[[], Env], task: Task) -> None:
    starts = []
    async with make() as env:
        starts.append(tuple(await env.reset(task, 0)))
        starts.append(tuple(await env.reset(task, 0)))
    async with make() as env:
        starts.append(tuple(await env.reset(task, 0)))
    _require(starts[0] == starts[1] == starts[2], f"reset must be deterministic, got {starts}")
    _require(len(starts[0]) > 0, "reset must return at least one message")
    _check_messages(starts[0])


async def _check_episode(make: Callable[[], Env], task: Task, probe: Message) -> None:
    env = make()
    async with env:
        await env.reset(task, 0)
        for _ in range(_MAX_STEPS):
            result = await env.step(probe)
            check_step(result)
            if result.terminated or result.truncated:
                break
    await env.__aexit__(None, None, None)  # closing again must do no harm


def check_step(result: StepResult) -> None:
    """Check one answer of an environment by itself.

    Raises:
      EnvContractError: with the rule that is broken.
    """
    _require(isinstance(result, StepResult), f"step must return a StepResult, got {result!r}")
    _require(math.isfinite(result.reward), f"reward must be finite, got {result.reward}")
    for name, value in result.info.items():
        _require(math.isfinite(value), f"info[{name!r}] must be finite, got {value}")
    success = result.info.get("success", 0.0)
    _require(0 <= success <= 1, f"info['success'] must be 0 to 1, got {success}")
    over = result.terminated or result.truncated
    _require(
        over is not bool(result.messages),
        "a step must return messages exactly if the episode goes on, "
        f"got {result.messages} with terminated={result.terminated}, truncated={result.truncated}",
    )
    _check_messages(result.messages)


def _check_messages(messages: Sequence[Message]) -> None:
    for message in messages:
        _require(isinstance(message, Message), f"expected a Message, got {message!r}")
        _require(
            message.role in ("system", "user", "tool"),
            f"an environment speaks as system, user or tool, got role {message.role!r}",
        )
        _require(isinstance(message.content, str), f"content must be text, got {message!r}")


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise EnvContractError(rule)
