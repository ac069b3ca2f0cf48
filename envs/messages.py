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
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    status: Literal["ok", "malformed"] = "ok"
    raw: str = ""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Example:
      >>> Message("user", "12+30").content
      '12+30'
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
