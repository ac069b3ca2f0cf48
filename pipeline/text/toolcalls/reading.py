"""What reads one call's text: the records that pass between the state machine and the readers.

Invariant: a reader returns the calls that a text spells, or raises `CallFault` with a status and
a sentence for the policy. It never repairs: a value that isn't spelled by the format's rules is a
fault.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....envs.messages import CallStatus, ToolCall
from ...errors import check
from .symbols import Symbols

JSON = Any


@dataclass(frozen=True)
class CallLimits:
    """How large calls may be. What is larger is reported and not run."""

    max_characters: int = 200_000
    """The longest text of a call, in characters."""
    max_calls: int = 64
    """The most calls in a turn."""
    max_depth: int = 64
    """The deepest nesting of lists and objects in arguments."""

    def __post_init__(self) -> None:
        check(self.max_characters >= 1, "max_characters", self.max_characters, ">= 1")
        check(self.max_calls >= 0, "max_calls", self.max_calls, ">= 0")
        check(1 <= self.max_depth <= 100, "max_depth", self.max_depth, "1 to 100")


@dataclass(frozen=True)
class Draft:
    """What a reader takes from a text: one call."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    status: CallStatus = "ok"
    problem: str = ""
    id: str = ""

    def refused(self, status: CallStatus, problem: str) -> "Draft":
        """Return the draft as one that must not be run."""
        return Draft(self.name, status=status, problem=problem, id=self.id)

    def call(self, raw: str, token_span: tuple[int, int]) -> ToolCall:
        """Return the draft as a call."""
        return ToolCall(
            self.name,
            self.arguments,
            self.status,
            raw,
            id=self.id,
            token_span=token_span,
            problem=self.problem,
        )


class CallFault(Exception):
    """The text of a call can't be read; the message is for the policy."""

    def __init__(self, status: CallStatus, problem: str, name: str = "") -> None:
        super().__init__(problem)
        self.status: CallStatus = status
        self.problem = problem
        self.name = name

    def named(self, name: str) -> "CallFault":
        """Return the fault with the name of the tool."""
        return CallFault(self.status, self.problem, name)

    def draft(self) -> Draft:
        """Return the fault as a draft."""
        return Draft(self.name, status=self.status, problem=self.problem)


@dataclass(frozen=True)
class CallText:
    """The text of one call, in symbols.

    Attributes:
      raw: all between the opening and the closing marker.
      parts: the same, cut where the mode changes: pairs of mode and text, without the markers.
      opener: the marker that opened it, "" where none did.
      closer: the marker that closed it, "" where the end of the turn did.
      head: the tool that the message's header names.
    """

    raw: str
    parts: tuple[tuple[str, str], ...] = ()
    opener: str = ""
    closer: str = ""
    head: str = ""


@dataclass(frozen=True)
class Context:
    """What a reader may use beside the text.

    Attributes:
      parameters: the JSON schema of the arguments of each tool, by name.
    """

    symbols: Symbols
    limits: CallLimits = field(default_factory=CallLimits)
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


Reader = Callable[[CallText, Context], Sequence[Draft]]


def strict_json(text: str, limits: CallLimits) -> JSON:
    """Read JSON: no doubled keys, no NaN, no infinite numbers, no lone surrogates.

    Raises:
      CallFault: for anything else.
    """
    value, end = strict_json_at(text, 0, limits)
    if rest := text[end:].strip():
        raise CallFault("invalid_json", f"the JSON is over before {_short(rest)}")
    return value


def strict_json_at(text: str, start: int, limits: CallLimits) -> tuple[JSON, int]:
    """Read the JSON value that begins at `start`; return it with the place after it.

    Raises:
      CallFault: where there is none.
    """
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise CallFault("over_limit", _too_deep(limits)) from None
    except ValueError as error:
        raise CallFault("invalid_json", f"invalid JSON: {error}") from None
    check_value(value, limits)
    return value, end


def check_value(value: Any, limits: CallLimits, depth: int = 0) -> None:
    """Refuse what no tool could take: deep nesting, infinite numbers, half characters.

    Raises:
      CallFault: for such a value.
    """
    if isinstance(value, dict | list):
        if depth >= limits.max_depth:
            raise CallFault("over_limit", _too_deep(limits))
        for item in (*value.keys(), *value.values()) if isinstance(value, dict) else value:
            check_value(item, limits, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise CallFault("invalid_json", "a number is too large")
    elif isinstance(value, str) and _SURROGATE.search(value):
        raise CallFault("invalid_json", "a string holds half a character (a lone surrogate)")


def unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as a dict.

    Raises:
      CallFault: where a key is given twice.
    """
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise CallFault("duplicate_key", f"the key {_short(key)} is given twice")
        made[key] = value
    return made


def required_name(name: str) -> str:
    """Return a name without the space around it.

    Raises:
      CallFault: where nothing else is left.
    """
    if not (stripped := name.strip()):
        raise CallFault("missing_name", "the call names no tool")
    return stripped


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _too_deep(limits: CallLimits) -> str:
    return f"the arguments are nested more than {limits.max_depth} deep"


_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder(object_pairs_hook=unique, parse_constant=_refuse_constant)
