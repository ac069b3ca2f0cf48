"""The tools of a real MCP server, by stdio and by streamable HTTP, on trio."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from headrace.envs import (
    Message,
    Task,
    ToolCall,
    ToolResult,
    answer_call,
    check_env,
)
from tests.fakes.local_server import local_server

pytest.importorskip("mcp.server.mcpserver")  # of version 2

from mcp import MCPError, StdioServerParameters

from headrace.envs.adapters.mcp import describe_mcp_tools, mcp_tools
from tests.fakes.mcp_env import AddEnv

SERVER = Path(__file__).parents[2] / "fakes" / "mcp_server.py"
STDIO = StdioServerParameters(command=sys.executable, args=[str(SERVER)])


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with local_server(SERVER) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, url: str):
    return STDIO if request.param == "stdio" else url


def ask(server, *calls: ToolCall, deadline_seconds: float | None = None) -> list[ToolResult]:
    async def run() -> list[ToolResult]:
        async with mcp_tools(server, deadline_seconds=deadline_seconds) as tools:
            return [await answer_call(call, tools) for call in calls]

    return trio.run(run)


def test_calls_are_answered_and_mistakes_are_told(server) -> None:
    results = ask(
        server,
        ToolCall("add", {"left": 2, "right": 3}),
        ToolCall("add", {"left": "two", "right": 3}),
        ToolCall("add", {"left": 2}),
        ToolCall("add", status="unclosed"),
        ToolCall("subtract", {}),
        ToolCall("fail", argument="no way"),
        ToolCall("pick", {"names": ["a", "b"], "at": {"x": 1}}),
        ToolCall("pick", {"names": 7}),
        ToolCall("add", {"left": math.nan, "right": 1}),
    )
    assert results[0] == ToolResult("5")
    assert results[1] == ToolResult("add: argument 'left' must be integer, got 'two'", True)
    assert "missing argument 'right'" in results[2].content
    assert "the call is not closed" in results[3].content
    assert "there is no tool 'subtract'; use add or count" in results[4].content
    assert "no way" in results[5].content
    assert results[6] == ToolResult("a at {'x': 1}")
    assert "list" in results[7].content  # the server's own check
    assert [result.is_error for result in results] == [False, *[True] * 5, False, True, True]


def test_tools_are_described_before_a_run(server) -> None:
    tools = {tool.name: tool for tool in describe_mcp_tools(server)}
    assert set(tools) == {"add", "count", "pick", "fail", "sleep", "die"}
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].parameters["properties"]["left"]["type"] == "integer"
    assert tools["add"].parameters["required"] == ["left", "right"]
    assert tools["count"].parameters["required"] == []
    assert tools["add"].types == {"left": int, "right": int}


def test_a_server_by_stdio_belongs_to_its_connection() -> None:
    count = ToolCall("count", {"by": 2})
    for _ in range(2):
        answers = [result.content for result in ask(STDIO, count, count)]
        assert answers == ["the total is 2", "the total is 4"]


def test_a_call_that_takes_too_long_is_an_answer(url: str) -> None:
    slow, quick = ToolCall("sleep", {"seconds": 1.0}), ToolCall("add", {"left": 1, "right": 1})
    given_up, answered = ask(url, slow, quick, deadline_seconds=0.2)
    assert given_up == ToolResult("sleep: took more than 0.2 s and was given up", True)
    assert answered in (
        ToolResult("2"),
        ToolResult("add: took more than 0.2 s and was given up", True),
    )


def test_a_server_that_dies_fails_the_call() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        ask(STDIO, ToolCall("die"))
    assert caught.group_contains(MCPError, match="Connection closed")


def test_a_server_that_is_not_there_fails_the_opening() -> None:
    with pytest.raises(FileNotFoundError):
        ask(StdioServerParameters(command="/no/such/program"))
    with pytest.raises(BaseExceptionGroup):
        ask("http://127.0.0.1:9/mcp")


def test_an_environment_with_such_tools_keeps_the_protocol(url: str) -> None:
    probes = [Message("assistant", "", (ToolCall("add", {"left": 2, "right": 3}),))]
    trio.run(lambda: check_env(lambda: AddEnv(url), [Task("a")], probes=probes))
