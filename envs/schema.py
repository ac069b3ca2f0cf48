"""Type hints as JSON schema, and values checked against them.

Invariant: a value that `convert` returns has the hinted type; a value that doesn't fit is a
`ArgumentError` with a message for the model, never another exception.
"""

import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LITERALS = (str, int, bool, type(None))  # those of Python that JSON has, too
_SUPPORTED = (
    "str, int, float, bool, list[...], dict, Literal[...] of what JSON has, an Enum of "
    "texts or numbers, or one of these | None"
)


class ArgumentError(ValueError):
    """A value doesn't fit its type; the message is for the model."""


def json_schema(hint: Any) -> Mapping[str, Any]:
    """Return the JSON schema of a type.

    Raises:
      TypeError: for a type that a model can't write as JSON.

    Example:
      >>> json_schema(list[int])
      {'type': 'array', 'items': {'type': 'integer'}}
    """
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    if values := _enum_values(hint):
        return {"enum": [*values]}
    if hint is dict:
        return {"type": "object"}
    if hint is list:
        return {"type": "array"}
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return {"type": "array", "items": json_schema(arguments[0])}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": json_schema(arguments[1])}
    if origin is Literal and all(type(value) in _LITERALS for value in arguments):
        return {"enum": list(arguments)}
    if inner := _optional(hint):
        return {"anyOf": [json_schema(inner[0]), {"type": "null"}]}
    raise TypeError(f"a tool's parameter must be {_SUPPORTED}; got {hint!r}")


def json_default(value: Any) -> Mapping[str, Any]:
    """Return what a schema says of a default: nothing where JSON has no such value.

    Example:
      >>> json_default([1, None]), json_default({1})
      ({'default': [1, None]}, {})
    """
    try:
        return {"default": json.loads(json.dumps(value, allow_nan=False, default=_enum_value))}
    except (TypeError, ValueError, RecursionError):
        return {}


def convert(value: Any, hint: Any) -> Any:
    """Return a JSON value as the hinted type; an integer is a valid float, nothing else bends.

    Raises:
      ArgumentError: where it doesn't fit.

    Example:
      >>> convert(2, float)
      2.0
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:  # whoever runs the tool checks it
        return value
    if inner := _optional(hint):
        return None if value is None else convert(value, inner[0])
    if origin is list and isinstance(value, list):
        return [convert(item, arguments[0]) for item in value]
    if origin is dict and isinstance(value, dict):
        return {key: convert(item, arguments[1]) for key, item in value.items()}
    for given, member in _enum_values(hint).items():
        if value == given and type(value) is type(given):
            return member
    if origin is Literal and any(value == a and type(value) is type(a) for a in arguments):
        return value
    if hint is float and type(value) in (int, float):
        return _finite(value)
    if hint in _NAMES and type(value) is hint:
        return value
    if (hint is list or hint is dict) and isinstance(value, hint):
        return value
    raise ArgumentError(f"must be {describe(hint)}, got {_short(value)}")


def convert_text(text: str, hint: Any) -> Any:
    """Return raw text as the hinted type: a string as it is, all others read as JSON.

    Raises:
      ArgumentError: where it doesn't fit.

    Example:
      >>> convert_text(" 12 ", int), convert_text("12", str)
      (12, '12')
    """
    inner = _optional(hint)
    if hint is str or (inner and inner[0] is str):
        return text
    if typing.get_origin(hint) is Literal and text in typing.get_args(hint):
        return text
    if text in _enum_values(hint):
        return convert(text, hint)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # brackets nested thousands deep end in the latter
        if hint is Any:
            return text
        raise ArgumentError(f"must be {describe(hint)}, got {_short(text)}") from None
    return convert(value, hint)


def describe(hint: Any) -> str:
    """Name a type in words that a model can act on.

    Example:
      >>> describe(Literal["up", "down"])
      "one of 'up', 'down'"
    """
    if hint in _NAMES:
        return _NAMES[hint]
    if choices := _choices(hint):
        return "one of " + ", ".join(repr(value) for value in choices)
    if inner := _optional(hint):
        return f"{describe(inner[0])} or null"
    if typing.get_origin(hint) is list:
        return f"a list of {describe(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return f"an object of {describe(typing.get_args(hint)[1])} values"
    return "an object" if hint is dict else "a list"


def _optional(hint: Any) -> tuple[Any, ...]:
    """Return the X of `X | None` in a tuple, an empty one for other types."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return ()
    inner = tuple(kind for kind in typing.get_args(hint) if kind is not type(None))
    return inner if len(inner) == 1 else ()


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return tuple(_enum_values(hint))


def _enum_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    raise TypeError(f"JSON has no {value!r:.100}")


def _enum_values(hint: Any) -> Mapping[Any, enum.Enum]:
    """Return the members of an Enum by value; nothing for another type."""
    if not (isinstance(hint, type) and issubclass(hint, enum.Enum)):
        return {}
    values = {member.value: member for member in hint}
    if not all(type(value) in (str, int) for value in values):
        raise TypeError(f"a tool's parameter must be {_SUPPORTED}; got {hint!r}")
    return values


def _finite(value: int | float) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer beyond the floats
        number = math.inf
    if not math.isfinite(number):
        raise ArgumentError("must be a finite number, at most about 1e308")
    return number


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and JSON doesn't have."""
    raise ValueError(name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
