"""Raw text as values of a schema."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.text.toolcalls import CallLimits
from headrace.pipeline.text.toolcalls.coerce import coerce

ROOT = {
    "$defs": {
        "Unit": {"enum": ["c", "f"]},
        "Count": {"type": "integer"},
        "Loop": {"$ref": "#/$defs/Loop"},
    }
}


def coerced(text: str, schema: dict[str, Any]) -> Any:
    return coerce(text, schema, ROOT, CallLimits())


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "integer"}, 7),
        (" 7\n", {"type": "integer"}, 7),
        ("7.5", {"type": "integer"}, "7.5"),
        ("seven", {"type": "integer"}, "seven"),
        ("1_000", {"type": "integer"}, "1_000"),
        ("0042", {"type": "number"}, "0042"),
        ("1e3", {"type": "number"}, 1000.0),
        ("1e999", {"type": "number"}, "1e999"),
        ("NaN", {"type": "number"}, "NaN"),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("yes", {"type": "boolean"}, "yes"),
        ("null", {"type": "null"}, None),
        ("null", {"type": "string"}, "null"),
        ("null", {"type": ["string", "null"]}, None),
        ("7", {"type": ["string", "integer"]}, 7),
        ("x", {"type": ["string", "integer"]}, "x"),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ('{"a": 1}', {"type": "string"}, '{"a": 1}'),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ('{"a": 1, "a": 2}', {"type": "object"}, '{"a": 1, "a": 2}'),
        ("[1]", {"type": "object"}, "[1]"),
        ("[1]", {"type": "array"}, [1]),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("5", {"$ref": "#/$defs/Count"}, 5),
        ("c", {"$ref": "#/$defs/Unit"}, "c"),
        ("5", {"$ref": "#/$defs/Nowhere"}, "5"),
        ("5", {"$ref": "#/$defs/Loop"}, "5"),
        ("2", {"enum": [1, 2]}, 2),
        ("5", {}, "5"),
    ],
)
def test_values(text: str, schema: dict[str, Any], value: Any) -> None:
    found = coerced(text, schema)
    assert found == value
    assert type(found) is type(value)


@given(st.text(max_size=8), st.sampled_from(["integer", "number", "boolean", "object", "array"]))
@settings(max_examples=50)
def test_a_text_becomes_a_value_of_its_type_or_stays_as_it_is(text: str, kind: str) -> None:
    types = {"integer": int, "number": int | float, "boolean": bool, "object": dict, "array": list}
    found = coerced(text, {"type": kind})
    assert found is text or isinstance(found, types[kind])
    assert coerced(text, {"type": "string"}) == text
