"""A small MCP server of the official SDK, by stdio; with a port as argument by HTTP."""

import os
import sys
import time

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("arithmetic")
total = 0


@server.tool()
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@server.tool()
def count(by: int = 1) -> str:
    """Add to a total that this server keeps."""
    global total  # noqa: PLW0603
    total += by
    return f"the total is {total}"


@server.tool()
def pick(names: list[str], at: dict[str, int] | None = None) -> str:
    """Return the first of some names."""
    return f"{names[0]} at {at}"


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise ToolError(reason)


@server.tool()
def sleep(seconds: float) -> str:
    """Take a while."""
    time.sleep(seconds)
    return "slept"


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
