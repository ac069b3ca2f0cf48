"""Calls whose arguments are JSON: the name inside the JSON, before it, or in a header.

Invariant: the text is JSON as a whole, or there is no call.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..reading import (
    JSON,
    CallFault,
    CallText,
    Context,
    Draft,
    required_name,
    strict_json,
    strict_json_at,
)


def read_objects(
    call: CallText,
    context: Context,
    *,
    keys: Sequence[str] = ("arguments",),
    separator: str = "",
) -> list[Draft]:
    """Read `{"name": …, "arguments": {…}}`, or a list of such objects.

    Args:
      keys: the keys that may hold the arguments.
      separator: what may stand between several values; "" allows one.
    """
    values = _values(context.symbols.text(call.raw), context, separator)
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    if not items:
        raise CallFault("malformed", "the list holds no call")
    return [_draft(item, keys) for item in items]


def read_named(
    call: CallText, context: Context, *, head: str = "", tail: str = r"\s*"
) -> list[Draft]:
    """Read a name and then one JSON object.

    Args:
      head: a pattern of what comes before the object, markers included, with a group `name` and
        maybe a group `id`; "" where the message's header names the tool.
      tail: a pattern of what may follow the object.
    """
    name, start, identity = call.head, 0, ""
    if head:
        found = re.match(context.symbols.encode_pattern(head), call.raw)
        if found is None:
            raise CallFault("malformed", "the call must be a name and a JSON object")
        groups = found.groupdict()
        name, start, identity = groups["name"], found.end(), groups.get("id") or ""
    text = context.symbols.text
    name = required_name(text(name))
    arguments = _object(text(call.raw[start:]), context, name, tail)
    return [Draft(name, arguments, id=text(identity))]


def _object(text: str, context: Context, name: str, tail: str) -> Mapping[str, Any]:
    try:
        value, end = strict_json_at(text, 0, context.limits)
    except CallFault as fault:
        raise fault.named(name) from None
    if not re.fullmatch(tail, text[end:]):
        raise CallFault("invalid_json", "the call goes on after the JSON object", name)
    if not isinstance(value, dict):
        raise CallFault("bad_arguments", "the arguments must be one JSON object", name)
    return value


def _values(text: str, context: Context, separator: str) -> list[JSON]:
    if not separator:
        return [strict_json(text, context.limits)]
    between = re.compile(rf"\s*+{re.escape(separator)}")
    value, end = strict_json_at(text, 0, context.limits)
    values = [value]
    while found := between.match(text, end):
        value, end = strict_json_at(text, found.end(), context.limits)
        values.append(value)
    if text[end:].strip():
        raise CallFault("invalid_json", "the turn goes on after the call")
    return values


def _draft(item: Any, keys: Sequence[str]) -> Draft:
    if not isinstance(item, dict):
        return Draft("", status="malformed", problem="a call must be one JSON object")
    name = item.get("name")
    if not isinstance(name, str) or not name.strip():
        return Draft("", status="missing_name", problem='the call has no "name"')
    found = [key for key in keys if key in item]
    if len(found) != 1:
        problem = f'the call must have one "{keys[0]}"'
        return Draft(name, status="bad_arguments", problem=problem)
    arguments = item[found[0]]
    if not isinstance(arguments, dict):
        problem = f'"{found[0]}" must be a JSON object'
        return Draft(name, status="bad_arguments", problem=problem)
    identity = item.get("id")
    return Draft(name, arguments, id=identity if isinstance(identity, str) else "")
