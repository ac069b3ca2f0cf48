"""Environments of aviary (`fhaviary`), which run their own tools, on an event loop.

Invariant: each call of a turn has one answer. A call that isn't right by the tool's schema is
answered here, before the others, and never reaches the environment; what a right one raises fails
the episode, unless the environment answers it.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

from aviary import core as aviary

from ..asyncio_env import LoopEnv
from ..base import StepResult, Task
from ..messages import Message, ToolCall
from ..tool_env import as_messages
from ..tools import Tool, ToolResult
from .described import checked_arguments, described_tool

Make = Callable[[Task], aviary.Environment[Any]]


class AviaryEnv:
    """An `AsyncioEnv` of an aviary environment, for `in_asyncio`."""

    def __init__(self, make: Make) -> None:
        """Args:
        make: makes the environment of a task, for example from an aviary `TaskDataset`.
        """
        self._make = make
        self._exits = AsyncExitStack()
        self.tools: tuple[Tool, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Make the task's environment and start it; the member's `seed` isn't used."""
        await self._exits.aclose()  # an earlier task's
        self._env = self._make(task)
        self._exits.push_async_callback(self._env.close)
        messages, tools = await self._env.reset()
        self.tools = tuple(_described(each) for each in tools)
        return [_message(each) for each in messages]

    async def step(self, message: Message) -> StepResult:
        """Let the environment run the right calls of a turn, or answer a turn without any."""
        checked = [
            (call, await checked_arguments(call, self.tools)) for call in message.tool_calls
        ]
        right = [_call(call, given) for call, given in checked if isinstance(given, dict)]
        wrong = [(call, told) for call, told in checked if isinstance(told, ToolResult)]
        answers = as_messages([call for call, _ in wrong], [told for _, told in wrong])
        if wrong and not right:
            return StepResult(tuple(answers))
        said = aviary.Message(role="assistant", content=message.content)
        if right:
            said = aviary.ToolRequestMessage(content=message.content, tool_calls=right)
        news, reward, done, truncated = await self._env.step(said)
        over = done or truncated
        shown = () if over else (*answers, *(_message(each) for each in news))
        return StepResult(shown, float(reward), terminated=done, truncated=truncated)


def describe_aviary_tools(make: Make, task: Task) -> tuple[Tool, ...]:
    """Start one task, before a run, and return its tools as `EnvSpec.tools` tells of them."""
    env = AviaryEnv(make)
    with LoopEnv(lambda: env) as loop:
        loop.reset(task, 0)
    return env.tools


def _described(tool: aviary.Tool) -> Tool:
    info = tool.info
    schema = info.parameters.model_dump(exclude_none=True) if info.parameters else {}
    return described_tool(info.name, info.description, schema)


def _call(call: ToolCall, arguments: dict[str, Any]) -> aviary.ToolCall:
    function = aviary.ToolCallFunction(name=call.name, arguments=arguments)
    return aviary.ToolCall(id=call.id or call.name, function=function)


def _message(message: aviary.Message) -> Message:
    content = message.content or ""
    if isinstance(message, aviary.ToolResponseMessage):
        return Message("tool", content, name=message.name, tool_call_id=message.tool_call_id)
    return Message("system" if message.role == "system" else "user", content)
