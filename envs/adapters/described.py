"""Tools that another library describes by a JSON schema."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..tools import Tool

_HINTS = {"string": str, "integer": int, "number": float, "boolean": bool}


def described_tool(
    name: str,
    description: str | None,
    schema: Mapping[str, Any],
    function: Callable[..., Awaitable[Any]],
    *,
    deadline_seconds: float | None = None,
) -> Tool:
    """Make a tool that checks arguments of plain types; `function` has to check all others."""
    whole = {"properties": {}, "required": [], **schema}
    types = {each: _hint(part) for each, part in whole["properties"].items()}
    about = description or ""
    return Tool(name, about, whole, types, function, deadline_seconds=deadline_seconds)


def _hint(schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return _HINTS.get(kind, Any) if isinstance(kind, str) else Any
