"""Calls written as tags around names and raw values.

Invariant: between the tags of arguments there is white space only. What stands inside of a
value's tags is the value, character by character.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Any

from ..coerce import coerce
from ..reading import (
    CallFault,
    CallText,
    Context,
    Draft,
    required_name,
    strict_json,
    unique,
)

# Possessive (`*+`), since runs of white space that two patterns could share cost quadratic time.
_FUNCTION = re.compile(r"\s*+<function=([^>\n]*+)>\s*+(</function>)?+\s*+")
_NAME = re.compile(r"\s*+([^\s<>]*+)\s*+")
_INVOKE = re.compile(r'\s*+name="([^"]*+)"\s*+(>?+)\s*+')
_PARAMETER = re.compile(r'\s*+name="([^"]*+)"\s++string="(true|false)"\s*+')
_ATTRIBUTES = re.compile(r'(?:\s*+\w++="[^"]*+")*+\s*+')
_ATTRIBUTE = re.compile(r'(\w++)="([^"]*+)"')


def read_function_tags(call: CallText, context: Context) -> list[Draft]:
    """Read `<function=NAME><parameter=KEY>VALUE</parameter></function>`."""
    found = _FUNCTION.fullmatch(context.symbols.text(_outside(call)))
    if found is None or bool(found[2]) == call.opener.startswith("<function"):
        raise CallFault("malformed", "the call must be <function=NAME>…</function>")
    return [_by_schema(call, context, found[1], optional=True)]


def read_key_value_tags(call: CallText, context: Context) -> list[Draft]:
    """Read `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`."""
    found = _NAME.fullmatch(context.symbols.text(_outside(call)))
    if found is None:
        raise CallFault("malformed", "only <arg_key> and <arg_value> may follow the name")
    return [_by_schema(call, context, found[1], optional=False)]


def read_invoke(call: CallText, context: Context) -> list[Draft]:
    """Read `name="NAME"><parameter name="KEY" string="true">VALUE</parameter>`."""
    found = _INVOKE.fullmatch(context.symbols.text(_outside(call)))
    if found is None or bool(found[2]) == call.closer.startswith("/"):
        raise CallFault("malformed", 'a call must begin with name="NAME"')

    def typed(head: str, value: str) -> tuple[str, Any]:
        parameter = _PARAMETER.fullmatch(head)
        if parameter is None:
            problem = 'a parameter must have name="KEY" string="true" or string="false"'
            raise CallFault("malformed", problem)
        raw = parameter[2] == "true"
        return parameter[1], value if raw else strict_json(value, context.limits)

    return [_draft(found[1], starmap(typed, _fields(call, context)))]


def read_attributes(call: CallText, context: Context) -> list[Draft]:
    """Read `tool="NAME"` and arguments with `key="KEY" type="TYPE"`."""
    head, _, rest = _outside(call).partition(context.symbols.encode("<|sep|>"))
    name = _attributes(context.symbols.text(head)).get("tool", "")
    if rest.strip():
        raise CallFault("malformed", "only arguments may stand in a call", name)

    def typed(head: str, value: str) -> tuple[str, Any]:
        attributes = _attributes(head)
        if not {"key", "type"} <= attributes.keys():
            raise CallFault("malformed", 'an argument must have key="KEY" type="TYPE"')
        raw = attributes["type"] == "string"
        return attributes["key"], value if raw else strict_json(value, context.limits)

    return [_draft(name, starmap(typed, _fields(call, context)))]


def _by_schema(call: CallText, context: Context, name: str, *, optional: bool) -> Draft:
    """Return the call with arguments of the types that the tool's schema names."""
    name = name.strip()
    schema = context.parameters.get(name, {})
    properties = schema.get("properties") or {}

    def typed(head: str, value: str) -> tuple[str, Any]:
        key = head.strip()
        return key, coerce(value, properties.get(key, {}), schema, context.limits)

    return _draft(name, starmap(typed, _fields(call, context, optional=optional)))


def _draft(name: str, pairs: Iterable[tuple[str, Any]]) -> Draft:
    name = required_name(name)
    try:
        arguments = unique(pairs)
        if "" in arguments:
            raise CallFault("malformed", "an argument has no name")
        return Draft(name, arguments)
    except CallFault as fault:
        raise fault.named(name) from None


def _fields(
    call: CallText, context: Context, *, optional: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield keys and values.

    Args:
      optional: a key without a value has an empty one.
    """
    key: str | None = None
    for mode, symbols in (*call.parts, ("key", "")):
        text = context.symbols.text(symbols)
        if mode == "key":
            if key is not None and not optional:
                raise CallFault("malformed", f"there is no value for {key.strip()!r}")
            if key is not None:
                yield key, ""
            key = text
        elif mode:
            if key is None:
                raise CallFault("malformed", "there is a value without a key")
            yield key, text
            key = None


def _outside(call: CallText) -> str:
    return "".join(text for mode, text in call.parts if not mode)


def _attributes(text: str) -> dict[str, str]:
    """Return `key="value"` pairs, or none where something else is there too."""
    if not _ATTRIBUTES.fullmatch(text):
        return {}
    return {found[1]: _unescape(found[2]) for found in _ATTRIBUTE.finditer(text)}


def _unescape(text: str) -> str:
    return (
        text.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
