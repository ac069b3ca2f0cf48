"""Raw text as values of a tool's JSON schema, for formats that write arguments without quotes.

Invariant: a text becomes another type only where the schema asks for that type and the text is
exactly one of its values; else it stays the text, for the tool to refuse.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .reading import CallFault, CallLimits, strict_json

Schema = Mapping[str, Any]

_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = ("null", "None")
# A text that several types would take becomes the first of them.
_ORDER = ("null", "boolean", "integer", "number", "array", "object", "string")
_MAX_REFERENCES = 16


def coerce(text: str, schema: Schema, root: Schema, limits: CallLimits) -> Any:
    """Return a text as the schema's type, or as it is.

    Args:
      schema: of the one argument.
      root: of all arguments, where `$ref` leads.

    Example:
      >>> coerce("7", {"type": "integer"}, {}, CallLimits())
      7
      >>> coerce("07", {"type": "integer"}, {}, CallLimits())
      '07'
    """
    types = _types(schema, root)
    for kind in _ORDER:
        if kind in types:
            try:
                return _READERS[kind](text, limits)
            except CallFault:
                continue
    return text


def _types(schema: Schema, root: Schema, references: int = 0) -> set[str]:
    """Return the names of all types that a schema allows."""
    if references > _MAX_REFERENCES or not isinstance(schema, Mapping):
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_resolve(reference, root), root, references + 1)
    if isinstance(values := schema.get("enum"), Sequence) and "type" not in schema:
        return {_type_of(value) for value in values}
    found = set(_listed(schema.get("type")))
    for word in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(word) or ():
            found |= _types(part, root, references + 1)
    return found


def _resolve(reference: str, root: Schema) -> Schema:
    """Follow a reference such as `#/$defs/Color`; one that leads nowhere allows nothing."""
    place: Any = root
    for step in reference.removeprefix("#/").split("/"):
        place = place.get(step, {}) if isinstance(place, Mapping) else {}
    return place if isinstance(place, Mapping) else {}


def _listed(kind: Any) -> Sequence[str]:
    return [kind] if isinstance(kind, str) else list(kind or ())


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return names.get(type(value), "object" if isinstance(value, Mapping) else "array")


def _null(text: str, limits: CallLimits) -> None:
    if text.strip() not in _NULLS:
        raise CallFault("bad_arguments", "not null")


def _boolean(text: str, limits: CallLimits) -> bool:
    if (word := text.strip()) not in _BOOLEANS:
        raise CallFault("bad_arguments", "not a boolean")
    return _BOOLEANS[word]


def _integer(text: str, limits: CallLimits) -> Any:
    if not _INTEGER.fullmatch(text.strip()):
        raise CallFault("bad_arguments", "not an integer")
    return strict_json(text, limits)


def _number(text: str, limits: CallLimits) -> Any:
    if not _NUMBER.fullmatch(text.strip()):
        raise CallFault("bad_arguments", "not a number")
    return strict_json(text, limits)


def _array(text: str, limits: CallLimits) -> Any:
    if not isinstance(value := strict_json(text, limits), list):
        raise CallFault("bad_arguments", "not an array")
    return value


def _object(text: str, limits: CallLimits) -> Any:
    if not isinstance(value := strict_json(text, limits), dict):
        raise CallFault("bad_arguments", "not an object")
    return value


def _string(text: str, limits: CallLimits) -> str:
    return text


_READERS = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "array": _array,
    "object": _object,
    "string": _string,
}
