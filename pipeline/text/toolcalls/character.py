"""Find the tool call in a turn's text, for the format in which the call is the whole turn.

A text that starts like a call, `name(`, is a call; all other text is content. The argument is
everything from the first `(` to the `)` that ends the turn, taken as it is. A call that
doesn't end this way is malformed: a value for the environment to answer, never repaired, never
an exception.
"""

import re

from ....envs.messages import ToolCall

_CALL_START = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=\()")


def parse_tool_call(text: str) -> ToolCall | None:
    """Return the call that a turn's text makes, or None where it is plain text.

    Example:
      >>> parse_tool_call("calculator(1+2)").argument
      '1+2'
      >>> parse_tool_call("calculator(1+2").status
      'malformed'
      >>> parse_tool_call("three") is None
      True
    """
    start = _CALL_START.match(text)
    if start is None:
        return None
    name = start.group()
    if not text.endswith(")"):
        return ToolCall(name, status="malformed", raw=text)
    return ToolCall(name, raw=text, argument=text[len(name) + 1 : -1])
