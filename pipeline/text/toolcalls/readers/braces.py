"""Calls written as `call:NAME{key:value}`, where a token of its own stands for a string's quote.

Invariant: keys are bare or quoted, strings are quoted, and nothing is escaped.
"""

import re
from collections.abc import Iterator
from typing import Any

from ..reading import (
    CallFault,
    CallText,
    Context,
    Draft,
    check_value,
    required_name,
    strict_json,
    unique,
)

QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*+call:\s*+([^\s{]*+)\s*+(?=\{)")
_BARE_KEY = re.compile(r"[^:{}\[\],]*")
_WORD = re.compile(r"[^:{}\[\],\s]*")


def read_braces(call: CallText, context: Context) -> list[Draft]:
    """Read one call."""
    found = _HEAD.match(call.raw)
    if found is None:
        raise CallFault("malformed", "a call must be call:NAME{…}")
    name = required_name(context.symbols.text(found[1]))
    cursor = _Cursor(call.raw, found.end(), context)
    try:
        arguments = cursor.object(depth=0)
        if call.raw[cursor.place :].strip():
            raise CallFault("malformed", "the call goes on after its closing brace")
        check_value(arguments, context.limits)
    except CallFault as fault:
        raise fault.named(name) from None
    return [Draft(name, arguments)]


class _Cursor:
    """Reads values from left to right."""

    def __init__(self, text: str, place: int, context: Context) -> None:
        self.place = place
        self._text = text
        self._context = context
        self._quote = context.symbols.encode(QUOTE)

    def object(self, depth: int) -> dict[str, Any]:
        """Read `{key:value,…}`."""
        self._expect("{")
        return unique(self._items(depth))

    def _items(self, depth: int) -> Iterator[tuple[str, Any]]:
        first = True
        while not self._take("}"):
            if not first:
                self._expect(",")
            first = False
            key = self._key()
            self._expect(":")
            yield key, self._value(depth + 1)

    def _array(self, depth: int) -> list[Any]:
        made: list[Any] = []
        self._expect("[")
        while not self._take("]"):
            if made:
                self._expect(",")
            made.append(self._value(depth + 1))
        return made

    def _value(self, depth: int) -> Any:
        limit = self._context.limits.max_depth
        if depth > limit:
            raise CallFault("over_limit", f"the arguments are nested more than {limit} deep")
        self._skip()
        if self._text.startswith("{", self.place):
            return self.object(depth)
        if self._text.startswith("[", self.place):
            return self._array(depth)
        if self._text.startswith(self._quote, self.place):
            return self._string()
        word = self._match(_WORD)
        if word.startswith('"'):
            raise CallFault("malformed", f"a string must stand between {QUOTE} and {QUOTE}")
        return strict_json(word, self._context.limits)

    def _string(self) -> str:
        start = self.place + len(self._quote)
        end = self._text.find(self._quote, start)
        if end < 0:
            raise CallFault("malformed", "a string is not closed")
        self.place = end + len(self._quote)
        return self._context.symbols.text(self._text[start:end])

    def _key(self) -> str:
        self._skip()
        if self._text.startswith(self._quote, self.place):
            return self._string()
        if not (key := self._match(_BARE_KEY).strip()):
            raise CallFault("malformed", "a key is missing")
        return self._context.symbols.text(key)

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.place)
        if found is None:  # not for patterns that match nothing too
            return ""
        self.place = found.end()
        return found.group()

    def _skip(self) -> None:
        while self._text.startswith((" ", "\n", "\t", "\r"), self.place):
            self.place += 1

    def _take(self, mark: str) -> bool:
        self._skip()
        if self._text.startswith(mark, self.place):
            self.place += len(mark)
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise CallFault("malformed", f"{mark!r} is missing")
