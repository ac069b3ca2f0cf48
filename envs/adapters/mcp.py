"""Tools of MCP servers, by the protocol's own SDK, which runs on trio.

Invariant: what the policy did wrong, and what a tool reports as its error, is an answer that the
policy reads. A server that can't be reached or breaks off is a failure of the episode.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import INVALID_PARAMS, CallToolResult
from mcp.types import Tool as ListedTool

from ..tools import Tool, ToolError
from .described import described_tool, sendable


@asynccontextmanager
async def mcp_tools(
    server: str | StdioServerParameters, *, deadline_seconds: float | None = None
) -> AsyncIterator[tuple[Tool, ...]]:
    """Connect to a server, and yield its tools while the connection is open.

    Args:
      server: the URL of a server that speaks streamable HTTP, or a command to start, which
        speaks by stdin and stdout and ends with the connection.
      deadline_seconds: of each call; see `Tool`.
    """
    async with Client(server) as client:
        listed, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        yield tuple(_tool(client, each, deadline_seconds) for each in listed)


def describe_mcp_tools(server: str | StdioServerParameters) -> tuple[Tool, ...]:
    """Connect once, outside of a run, and return the tools as `EnvSpec.tools` tells of them.

    These describe; those of `mcp_tools` can be called.
    """

    async def read() -> tuple[Tool, ...]:
        async with mcp_tools(server) as tools:
            return tools

    return trio.run(read)


def _tool(client: Client, listed: ListedTool, deadline_seconds: float | None) -> Tool:
    async def call(**arguments: Any) -> str:
        try:
            result = await client.call_tool(listed.name, sendable(arguments))
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise ToolError(str(error)) from error
            raise
        if result.is_error:
            raise ToolError(_text(result))
        return _text(result)

    schema = listed.input_schema
    about = listed.description
    return described_tool(listed.name, about, schema, call, deadline_seconds=deadline_seconds)


def _text(result: CallToolResult) -> str:
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    return "\n".join(parts)
