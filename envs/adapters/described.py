"""Tools that another library describes by a JSON schema, and may run itself."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..messages import ToolCall
from ..tools import Tool, ToolResult, answer_call

_HINTS = {"string": str, "integer": int, "number": float, "boolean": bool}


def described_tool(
    name: str,
    description: str | None,
    schema: Mapping[str, Any],
    function: Callable[..., Awaitable[Any]] | None = None,
    *,
    deadline_seconds: float | None = None,
) -> Tool:
    """Make a tool that checks arguments of plain types; `function` has to check all others.

    Without a function the tool only describes; whoever told of it runs it.
    """
    whole = {"properties": {}, "required": [], **schema}
    types = {each: _hint(part) for each, part in whole["properties"].items()}
    about = description or ""
    run = function or _run_elsewhere
    return Tool(name, about, whole, types, run, deadline_seconds=deadline_seconds)


async def checked_arguments(call: ToolCall, tools: Sequence[Tool]) -> dict[str, Any] | ToolResult:
    """Return what a call gives its tool, which isn't run, or what is wrong with the call."""
    taken: dict[str, Any] = {}

    async def take(**arguments: Any) -> str:
        taken.update(arguments)
        return ""

    result = await answer_call(call, [replace(tool, function=take) for tool in tools])
    return result if result.is_error else taken


def sendable(data: Any) -> Any:
    """Return JSON data with "?" for lone surrogates, which JSON can say and UTF-8 can't."""
    return json.loads(json.dumps(data, ensure_ascii=False).encode(errors="replace"))


async def _run_elsewhere(**arguments: Any) -> Any:
    raise NotImplementedError("the environment that told of this tool runs it")


def _hint(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _HINTS.get(kind, Any) if isinstance(kind, str) else Any
