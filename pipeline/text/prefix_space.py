"""Where a vocabulary puts a space before a text, and how to leave it out.

Sentencepiece-like vocabularies spell the start of a text as if a space stood before it. Some do
so at the very start only, some after each special token.
"""

from collections.abc import Callable, Mapping
from typing import Any

_Node = Mapping[str, Any]
_Change = Callable[[_Node], _Node | None]


def for_later_pieces(definition: _Node) -> dict[str, Any]:
    """Return the definition for text that follows a special token."""
    splitter = definition.get("pre_tokenizer")
    return {**definition, "pre_tokenizer": _each(splitter, "pretokenizers", _first_to_never)}


def for_parts_of_words(definition: _Node) -> dict[str, Any]:
    """Return the definition for text that goes on in the middle of a word: never a space."""
    return {
        **definition,
        "normalizer": _each(definition.get("normalizer"), "normalizers", _no_prepend),
        "pre_tokenizer": _each(definition.get("pre_tokenizer"), "pretokenizers", _never),
    }


def _each(node: _Node | None, parts: str, change: _Change) -> _Node | None:
    if node is None:
        return None
    if node["type"] == "Sequence":
        changed = [_each(part, parts, change) for part in node[parts]]
        return {**node, parts: [part for part in changed if part is not None]}
    return change(node)


def _first_to_never(node: _Node) -> _Node:
    is_first = node["type"] == "Metaspace" and node.get("prepend_scheme") == "first"
    return {**node, "prepend_scheme": "never"} if is_first else node


def _no_prepend(node: _Node) -> _Node | None:
    return None if node["type"] == "Prepend" else node


def _never(node: _Node) -> _Node:
    if node["type"] == "Metaspace":
        return {**node, "prepend_scheme": "never"}
    if node["type"] == "ByteLevel":
        return {**node, "add_prefix_space": False}
    return node
