"""An environment whose tools are those of an MCP server."""

from contextlib import AsyncExitStack

from headrace.envs import Message, StepResult, Task, answer_calls
from headrace.envs.adapters.mcp import mcp_tools


class AddEnv:
    """Asks for a sum; a server's tools answer, an own one for each episode."""

    def __init__(self, server) -> None:
        self._server = server
        self._exits = AsyncExitStack()

    async def __aenter__(self):
        self._tools = await self._exits.enter_async_context(mcp_tools(self._server))
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._exits.aclose()

    async def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", "What is 2 + 3?")]

    async def step(self, message: Message) -> StepResult:
        if not message.tool_calls:
            return StepResult(reward=float(message.content == "5"), terminated=True)
        return StepResult(tuple(await answer_calls(message.tool_calls, self._tools)))
