"""What an environment and a policy say to each other.

Messages are for environments and for people. Training never reads them: it uses the exact
token ids of a `Trajectory`, so a message may lose details (spacing, invalid bytes) that the
tokens keep.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """One attempt of the policy to call a tool.

    A malformed attempt is a value too (`status`), which the environment answers like any
    other call: it is never repaired and never raised as an exception.

    Attributes:
      arguments: the named arguments, not yet checked against the tool's schema.
      raw: the attempt as it was written.
      argument: the text between the brackets of a call `name(text)`, which names no
        arguments; None for other calls and for malformed ones.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    status: Literal["ok", "malformed"] = "ok"
    raw: str = ""
    argument: str | None = None


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
      content: the whole text of the turn, tool calls included.
      tool_calls: the calls found in it, in order.

    Example:
      >>> Message("user", "12+30").content
      '12+30'
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
