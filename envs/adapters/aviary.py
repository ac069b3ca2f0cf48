"""Environments of aviary (`fhaviary`), which run their own tools, on an event loop.

Invariant: each call of a turn has one answer. A call that isn't right by the tool's schema is
answered here, before the others, and never reaches the environment; what a right one raises fails
the episode, unless the environment answers it.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

from aviary import core as aviary

from ..asyncio_env import LoopEnv
from ..base import StepResult, Task
from ..messages import Message
from ..tools import Tool, answer_call
from .described import described_tool


class AviaryEnv:
    """An `AsyncioEnv` of an aviary environment, for `in_asyncio`."""

    def __init__(self, make: Callable[[Task], aviary.Environment[Any]]) -> None:
        """Args:
        make: makes the environment of a task, for example from an aviary `TaskDataset`.
        """
        self._make = make
        self._env: aviary.Environment[Any] | None = None
        self.tools: tuple[Tool, ...] = ()
        self._accepted: list[dict[str, Any]] = []  # the arguments of the call that was checked

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._env is not None:
            await self._env.close()

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Make the task's environment and start it; the member's `seed` isn't used."""
        self._env = self._make(task)
        messages, tools = await self._env.reset()
        self.tools = tuple(self._checking(each) for each in tools)
        return [_message(each) for each in messages]

    async def step(self, message: Message) -> StepResult:
        """Let the environment run the right calls of a turn, or answer a turn without any."""
        right: list[aviary.ToolCall] = []
        answers: list[Message] = []
        for call in message.tool_calls:
            checked = await answer_call(call, self.tools)
            if checked.is_error:
                told = checked.content
                answers.append(Message("tool", told, name=call.name, tool_call_id=call.id))
            else:
                arguments = self._accepted.pop()
                function = aviary.ToolCallFunction(name=call.name, arguments=arguments)
                right.append(aviary.ToolCall(id=call.id or f"{len(right)}", function=function))
        if answers and not right:
            return StepResult(tuple(answers))
        assert self._env is not None, "reset comes first"
        said = aviary.Message(role="assistant", content=message.content)
        if right:
            said = aviary.ToolRequestMessage(content=message.content, tool_calls=right)
        news, reward, done, truncated = await self._env.step(said)
        over = done or truncated
        shown = () if over else (*answers, *(_message(each) for each in news))
        return StepResult(shown, float(reward), terminated=done, truncated=truncated)

    def _checking(self, tool: aviary.Tool) -> Tool:
        """Return a tool that accepts what is right by the schema, and runs nothing."""

        async def accept(**arguments: Any) -> str:
            self._accepted.append(arguments)
            return ""

        info = tool.info
        schema = info.parameters.model_dump(exclude_none=True) if info.parameters else {}
        return described_tool(info.name, info.description, schema, accept)


def describe_aviary_tools(
    make: Callable[[Task], aviary.Environment[Any]], task: Task
) -> tuple[Tool, ...]:
    """Start one task, before a run, and return its tools as `EnvSpec.tools` tells of them."""
    env = AviaryEnv(make)
    with LoopEnv(lambda: env) as loop:
        loop.reset(task, 0)
    return env.tools


def _message(message: aviary.Message) -> Message:
    content = message.content or ""
    if isinstance(message, aviary.ToolResponseMessage):
        return Message("tool", content, name=message.name, tool_call_id=message.tool_call_id)
    return Message("system" if message.role == "system" else "user", content)
