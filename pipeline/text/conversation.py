"""Messages as chat templates want them, and for templates that know no tools.

Invariant: whatever content says, only what is written here and in the template counts as markup:
contents go through the veil first.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

from ...envs.messages import Message, ToolCall
from .chat_template import ChatTemplate
from .veil import Veil

ToolSchema = Mapping[str, Any]
"""A tool as `{"name": ..., "description": ..., "parameters": ...}`, a JSON schema."""

UNNAMED = "tool"  # stands for the tool of an answer that names none
ROLES = ("system", "user", "assistant", "tool")

_TOOLS_BEFORE = "# Tools\n\nYou may call these functions, one a line as a JSON schema:\n<tools>\n"
_TOOLS_AFTER = (
    "\n</tools>\n\nTo call a function, write its name and its arguments as JSON, like this:\n"
    '<tool_call>\n{"name": "<function>", "arguments": {"<argument>": "<value>"}}\n</tool_call>\n'
    "You will then read what it returned between <tool_response> and </tool_response>."
)


@dataclass(frozen=True)
class Abilities:
    """What a chat template can do by itself.

    Attributes:
      tools: it describes tools, and writes calls and answers.
      system: it takes a system message.
      arguments: how it wants a call's arguments.
      content: how it wants a message's text: as it is, or as a list of one part.
    """

    tools: bool = True
    system: bool = True
    arguments: Literal["object", "json"] = "object"
    content: Literal["text", "parts"] = "text"


@dataclass(frozen=True)
class Writer:
    """Writes conversations by a template, special tokens in content veiled.

    Attributes:
      tools: what the policy may call.
      abilities: what is left to the template.
    """

    template: ChatTemplate
    veil: Veil
    tools: tuple[ToolSchema, ...] = ()
    abilities: Abilities = Abilities()

    def write(self, messages: Sequence[Message], *, generate: bool = False) -> str:
        """Return the text of a conversation, with stand-ins as `veil.lift` takes them back.

        Raises:
          TemplateRefusal: where the template can't write them.
          ValueError: for an unknown role.
        """
        for message in messages:
            if message.role not in ROLES:
                raise ValueError(
                    f"the role of a message must be one of {', '.join(ROLES)}, "
                    f"got {message.role!r}"
                )
        veiled = [self._veiled(message) for message in _with_ids(messages)]
        tools = self._functions
        if not self.abilities.tools:
            veiled = _without_tools(veiled, tools)
            tools = []
        if not self.abilities.system:
            veiled = _without_system(veiled)
        dicts = [self._as_dict(message) for message in veiled]
        return self.template.render(dicts, tools, generate=generate)

    @cached_property
    def _functions(self) -> list[dict[str, Any]]:
        """The tools, veiled once for all conversations."""
        return [_as_function(self.veil.hide_in(tool)) for tool in self.tools]

    def _veiled(self, message: Message) -> Message:
        hide = self.veil.hide
        calls = tuple(
            replace(
                call,
                name=hide(call.name),
                arguments=self.veil.hide_in(call.arguments),
                id=hide(call.id),
            )
            for call in message.tool_calls
            if call.status == "ok"
        )
        wrong = [call.raw for call in message.tool_calls if call.status != "ok"]
        return replace(
            message,
            content=hide("".join([message.content, *wrong])),
            tool_calls=calls,
            reasoning=hide(message.reasoning),
            name=hide(message.name),
            tool_call_id=hide(message.tool_call_id),
        )

    def _as_dict(self, message: Message) -> dict[str, Any]:
        content: Any = message.content
        if self.abilities.content == "parts":
            content = [{"type": "text", "text": content}]
        fields: dict[str, Any] = {"role": message.role, "content": content}
        if message.role == "tool":
            fields |= {"name": message.name or UNNAMED, "tool_call_id": message.tool_call_id}
        if message.reasoning:
            # Templates call it by one of these names; none writes it twice.
            fields |= dict.fromkeys(
                ("reasoning_content", "reasoning", "thinking"), message.reasoning
            )
        if message.tool_calls:
            fields["tool_calls"] = [self._as_call(call) for call in message.tool_calls]
        return fields

    def _as_call(self, call: ToolCall) -> dict[str, Any]:
        arguments: Any = _arguments(call)
        if self.abilities.arguments == "json":
            arguments = json.dumps(arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        return {"type": "function", "id": call.id, "function": function}


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Number the calls that have no id, and the answers to them, from 0 in each turn."""
    numbered, place = [], 0
    for message in messages:
        if message.role == "tool":
            numbered.append(replace(message, tool_call_id=message.tool_call_id or _id(place)))
            place += 1
            continue
        place = 0
        calls = [
            replace(call, id=call.id or _id(index))
            for index, call in enumerate(message.tool_calls)
        ]
        numbered.append(replace(message, tool_calls=tuple(calls)))
    return numbered


def _id(place: int) -> str:
    return f"{place:09d}"  # the strictest templates want nine letters or digits


def _arguments(call: ToolCall) -> dict[str, Any]:
    return dict(call.arguments) if call.argument is None else {"argument": call.argument}


def _as_function(tool: ToolSchema) -> dict[str, Any]:
    return {"type": "function", "function": dict(tool)}


def _without_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Say by system and user messages what the template has no words for."""
    plain = [
        part
        for is_tool, group in groupby(messages, key=_is_tool)
        for part in ([_answers(group)] if is_tool else map(_spell_calls, group))
    ]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    described = f"{_TOOLS_BEFORE}{lines}{_TOOLS_AFTER}"
    if plain and plain[0].role == "system":
        first, *others = plain
        return [replace(first, content=f"{first.content}\n\n{described}"), *others]
    return [Message("system", described), *plain]


def _is_tool(message: Message) -> bool:
    return message.role == "tool"


def _answers(messages: Iterable[Message]) -> Message:
    parts = [f"<tool_response>\n{message.content}\n</tool_response>" for message in messages]
    return Message("user", "\n".join(parts))


def _spell_calls(message: Message) -> Message:
    calls = [f"<tool_call>\n{_call_as_json(call)}\n</tool_call>" for call in message.tool_calls]
    parts = [message.content] * bool(message.content) + calls
    return replace(message, content="\n".join(parts), tool_calls=())


def _call_as_json(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": _arguments(call)}, ensure_ascii=False)


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Put a first system message before the first user message's text."""
    if not messages or messages[0].role != "system":
        return list(messages)
    system, *others = messages
    if others and others[0].role == "user":
        joined = f"{system.content}\n\n{others[0].content}"
        return [replace(others[0], content=joined), *others[1:]]
    return [replace(system, role="user"), *others]
