"""Rows of data as conversations: what JSON says of messages, calls, pairs and labels.

Invariant: nothing is guessed. A row that can't be read is a `ConfigError` that names its place,
what is wrong with it, and what it should be.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from ...envs.messages import Message, Role, ToolCall
from ..errors import ConfigError
from ..text.conversation import ToolSchema

Table = Mapping[str, Any]

_ROLES = get_args(Role)
_REASONING = ("reasoning_content", "reasoning", "thinking")
_NEEDED = {
    "sft": '"messages", or "prompt" and "completion"',
    "pairs": '"chosen" and "rejected", and mostly "prompt"',
    "labels": '"prompt", "completion" and "label", or pairs of "chosen" and "rejected"',
}


@dataclass(frozen=True)
class Row:
    """One row of a file.

    Attributes:
      where: its file and line, for people.
      content: a table, or the JSON of one.
    """

    where: str
    content: Table | bytes

    @cached_property
    def table(self) -> Table:
        """Its content.

        Raises:
          BadRow: where it is no JSON object.
        """
        if not isinstance(self.content, bytes):
            return self.content
        try:
            table = json.loads(self.content.decode("utf-8-sig"))
        except ValueError as error:  # of the encoding or of the JSON
            raise BadRow(
                self.where, f"not a JSON object: {error}; write one object a line"
            ) from error
        if not isinstance(table, dict):
            raise BadRow(self.where, f"a row must be a JSON object, got {table!r:.80}")
        return table


@dataclass(frozen=True)
class Conversation:
    """What is learnt from.

    Attributes:
      messages: of all roles.
      learnt: for each message, whether the policy learns to say it; only its own are.
      tools: what it may call in it, as JSON schemas.
    """

    messages: tuple[Message, ...]
    learnt: tuple[bool, ...]
    tools: tuple[ToolSchema, ...] = ()


class BadRow(ConfigError):
    """A row that can't be used; says where it is and what it should be."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")


def conversation_of(row: Row) -> Conversation:
    """Read a row of `messages`, of which all of the assistant's are learnt, or of `prompt` and
    `completion`, of which only the completion's are.

    A message with a `weight` of 0 isn't learnt.

    Raises:
      BadRow: where it is neither, or nothing is to be learnt.
    """
    table = row.table
    if _has(table, "messages"):
        messages, weights = _read_messages(row, "messages")
        return _learning(row, messages, weights, start=0)
    if _has(table, "completion"):
        prompt, answer, weights = _prompt_and_answer(row, "completion")
        return _learning(row, [*prompt, *answer], [*[True] * len(prompt), *weights], len(prompt))
    raise _unknown(row, "sft")


def pair_of(row: Row) -> tuple[Conversation, Conversation]:
    """Read a pair: the better and the worse conversation, alike up to where they part.

    `chosen` and `rejected` are answers to `prompt`, or whole conversations.

    Raises:
      BadRow: where it is no pair, or its members are equal.
    """
    if not (_has(row.table, "chosen") and _has(row.table, "rejected")):
        raise _unknown(row, "pairs")
    sides = [_prompt_and_answer(row, name) for name in ("chosen", "rejected")]
    whole = [[*prompt, *answer] for prompt, answer, _ in sides]
    shared = _shared(*whole)
    if len(sides[0][0]) > 0 or len(sides[1][0]) > 0:
        if sides[0][0] != sides[1][0]:
            raise BadRow(row.where, '"chosen" and "rejected" must begin with the same prompt')
        shared = len(sides[0][0])
    if whole[0] == whole[1]:
        raise BadRow(row.where, '"chosen" and "rejected" are equal; leave the row out')
    chosen, rejected = (
        _learning(row, messages, [True] * len(prompt) + weights, shared)
        for messages, (prompt, _, weights) in zip(whole, sides, strict=True)
    )
    return chosen, rejected


def judged_of(row: Row) -> tuple[Conversation | None, Conversation | None]:
    """Read a pair, or a single answer with a `label`: (answer, None) for a good one.

    Raises:
      BadRow: where it is neither.
    """
    if _has(row.table, "chosen") or _has(row.table, "rejected"):
        return pair_of(row)
    if not (_has(row.table, "completion") and "label" in row.table):
        raise _unknown(row, "labels")
    label = row.table["label"]
    if label not in (True, False):  # 0 and 1, too
        raise BadRow(row.where, f'"label" must be true or false, got {label!r:.80}')
    answer = conversation_of(Row(row.where, {k: v for k, v in row.table.items() if k != "label"}))
    return (answer, None) if label else (None, answer)


def _learning(
    row: Row, messages: Sequence[Message], weights: Sequence[bool], start: int
) -> Conversation:
    learnt = tuple(
        place >= start and message.role == "assistant" and weight
        for place, (message, weight) in enumerate(zip(messages, weights, strict=True))
    )
    if not any(learnt):
        raise BadRow(
            row.where,
            "no message of the assistant is to be learnt; give one of role 'assistant'"
            + (" after the prompt" if start else ""),
        )
    return Conversation(tuple(_with_names(messages)), learnt, _tools(row))


def _prompt_and_answer(row: Row, name: str) -> tuple[list[Message], list[Message], list[bool]]:
    """Read an answer beside its prompt; a text is the user's or the assistant's message."""
    prompt = _read_side(row, "prompt", "user")[0] if _has(row.table, "prompt") else []
    answer, weights = _read_side(row, name, "assistant")
    if answer[0].role == "assistant" or not prompt:
        return prompt, answer, weights
    if answer[: len(prompt)] != prompt:
        raise BadRow(
            row.where,
            f'"{name}" must begin with the assistant\'s message, or with the whole "prompt"; it '
            f"begins with one of role {answer[0].role!r}",
        )
    return prompt, answer[len(prompt) :], weights[len(prompt) :]


def _read_side(row: Row, name: str, role: Role) -> tuple[list[Message], list[bool]]:
    value = row.table[name]
    if isinstance(value, str):
        return [Message(role, value)], [True]
    return _read_messages(row, name)


def _read_messages(row: Row, name: str) -> tuple[list[Message], list[bool]]:
    value = row.table[name]
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        what = "a list of messages" + ("" if name == "messages" else ", or a text")
        raise BadRow(row.where, f'"{name}" must be {what}, got {value!r:.80}')
    places = [f'{row.where}: message {number} of "{name}"' for number in range(1, len(value) + 1)]
    messages = [_message(where, entry) for where, entry in zip(places, value, strict=True)]
    return messages, [entry.get("weight", 1) not in (0, None) for entry in value]


def _message(where: str, entry: Any) -> Message:
    if not isinstance(entry, Mapping) or "role" not in entry:
        raise BadRow(where, f'must be an object with "role" and "content", got {entry!r:.80}')
    role: Any = "system" if entry["role"] == "developer" else entry["role"]
    if role not in _ROLES:
        raise BadRow(where, f'"role" must be one of {", ".join(_ROLES)}, got {role!r:.80}')
    calls = tuple(_call(where, call) for call in _list(where, entry, "tool_calls"))
    if calls and role != "assistant":
        raise BadRow(where, f"only the assistant has tool_calls, not the role {role!r}")
    content = _content(where, entry.get("content"))
    reasoning = next((entry[key] for key in _REASONING if entry.get(key)), "")
    if entry.get("content") is None and not (calls or reasoning):
        raise BadRow(
            where, f'the {role}\'s message needs a "content"; leave it out if it has none'
        )
    return Message(
        role,
        content,
        calls,
        reasoning=_text(where, "reasoning", reasoning),
        name=_text(where, "name", entry.get("name") or ""),
        tool_call_id=_text(where, "tool_call_id", entry.get("tool_call_id") or ""),
    )


def _content(where: str, content: Any) -> str:
    """Give the text of a content; a list of text parts is joined."""
    if content is None:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return _text(where, "content", content)
    parts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise BadRow(where, f'"content" may have parts of type "text" only, got {part!r:.80}')
        parts.append(_text(where, "text", part.get("text")))
    return "".join(parts)


def _call(where: str, call: Any) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRow(where, f'a tool call needs a "function" with a "name", got {call!r:.80}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise BadRow(where, f"the arguments of a tool call are no JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise BadRow(
            where, f"the arguments of a tool call must be an object, got {arguments!r:.80}"
        )
    return ToolCall(function["name"], arguments, id=_text(where, "id", call.get("id") or ""))


def _tools(row: Row) -> tuple[ToolSchema, ...]:
    """Read `tools`: JSON schemas as chat templates and the chat APIs have them, or JSON text."""
    tools = row.table.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise BadRow(row.where, f'"tools" is no JSON: {error}') from error
    found = []
    for tool in _list(row.where, {"tools": tools}, "tools"):
        schema = tool.get("function", tool) if isinstance(tool, Mapping) else tool
        if not isinstance(schema, Mapping) or not isinstance(schema.get("name"), str):
            raise BadRow(row.where, f'a tool needs a "function" with a "name", got {tool!r:.80}')
        found.append(schema)
    return tuple(found)


def _with_names(messages: Sequence[Message]) -> list[Message]:
    """Name the tools that answer, where only the calls say it: some templates write the name."""
    named, waiting = [], list[ToolCall]()
    for message in messages:
        named.append(message)
        if message.role == "assistant":
            waiting = list(message.tool_calls)
        if message.role == "tool" and not message.name and waiting:
            same = [call for call in waiting if call.id and call.id == message.tool_call_id]
            call = same[0] if same else waiting[0]
            waiting.remove(call)
            named[-1] = replace(message, name=call.name)
    return named


def _shared(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Count the messages that both begin with."""
    pairs = zip(first, second, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs) if one != other),
        min(len(first), len(second)),
    )


def _list(where: str, table: Table, name: str) -> Sequence[Any]:
    value = table.get(name)
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise BadRow(where, f'"{name}" must be a list, got {value!r:.80}')
    return value


def _text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadRow(where, f'"{name}" must be a text, got {value!r:.80}')
    return value


def _has(table: Table, name: str) -> bool:
    return table.get(name) is not None


def _unknown(row: Row, kind: Literal["sft", "pairs", "labels"]) -> BadRow:
    keys = ", ".join(map(repr, sorted(row.table))) or "none"
    return BadRow(row.where, f"a row needs {_NEEDED[kind]}, this one's keys are {keys}")
