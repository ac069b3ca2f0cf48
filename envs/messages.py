"""What an environment and a policy say to each other.

Messages are for environments and for people. Training never reads them: it uses the exact
token ids of a `Trajectory`, so a message may lose details (spacing, invalid bytes) that the
tokens keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]

CallStatus = Literal[
    "ok",
    "malformed",  # doesn't follow the format
    "unclosed",  # the turn ended inside the call
    "invalid_json",  # the JSON that the format wants is broken
    "missing_name",  # no tool is named
    "bad_arguments",  # the arguments aren't an object of named values
    "duplicate_key",  # a name is given twice, so it isn't clear which value is meant
    "over_limit",  # too long, too deep, or one call too many
    "in_reasoning",  # written in a train of thought that never ended
]


@dataclass(frozen=True)
class ToolCall:
    """One attempt of the policy to call a tool.

    A wrong attempt is a value too (`status`), which the environment answers like any other
    call: only an attempt that is "ok" may be run, and none is ever repaired or raised as an
    exception.

    Attributes:
      name: the tool; "" where the attempt names none.
      arguments: the named arguments, not yet checked against the tool's schema; empty unless
        the status is "ok".
      raw: the attempt as it was written.
      argument: the text between the brackets of a call `name(text)`, which names no
        arguments; None for other calls and for wrong ones.
      id: what the policy calls this attempt, where the format has such ids.
      token_span: the attempt's first token in the turn and the one after its last; calls that
        are written as one list share the list's span; None where it isn't known.
      problem: what is wrong, in words for the policy; "" where the status says it all.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    status: CallStatus = "ok"
    raw: str = ""
    argument: str | None = None
    id: str = ""
    token_span: tuple[int, int] | None = None
    problem: str = ""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
      content: the text of the turn. Calls that the format sets apart by markers are left
        out; a call that is the whole turn, such as `name(text)`, is included.
      tool_calls: the calls found in the turn, in order.
      reasoning: the policy's thoughts before it spoke, where the format sets them apart.
      name: of a tool's message: the tool that answers.
      tool_call_id: of a tool's message: the id of the call that it answers.

    Example:
      >>> Message("user", "12+30").content
      '12+30'
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    name: str = ""
    tool_call_id: str = ""
