"""How a run and a supervisor talk: one JSON object a line; bytes are base64 in it.

The same lines go through a socket to a supervisor here and through TCP or `ssh` to one
elsewhere. Each request has an `id` and an `op`; each has exactly one answer with that `id`.

| op | fields of the request | fields of the answer |
|---|---|---|
| `hello` | `settings` | `guarantees` |
| `open` | `box` | |
| `exec` | `box`, `argv` or `code`, `stdin`, `files`, `limits` | those of a result |
| `read` | `box`, `path`, `max_bytes` | `data` |
| `write` | `box`, `path`, `data` | |
| `close` | `box` | |
| `cancel` | `call`: the id of an `exec` | |

An answer with `error` says what went wrong, with `kind` "infrastructure" (nobody's fault in the
sandbox) or "refused" (a path or request that isn't allowed).
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 256 << 20  # a peer that sends more without a line's end is broken


class WireError(ValueError):
    """The peer doesn't keep to the protocol."""


def encode(message: Mapping[str, Any]) -> bytes:
    r"""Encode one message as a line.

    Example:
      >>> encode({"id": 1, "op": "open"})
      b'{"id":1,"op":"open"}\n'
    """
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def pack(data: bytes) -> str:
    """Put bytes into a message."""
    return base64.b64encode(data).decode()


def unpack(text: str) -> bytes:
    """Take bytes out of a message.

    Raises:
      WireError: if it isn't base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as error:
        raise WireError(f"a message's bytes must be base64: {error}") from error


class LineBuffer:
    """Cuts a stream of bytes into messages.

    Example:
      >>> LineBuffer().feed(b'{"id":1}')
      []
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held_bytes = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take what came; return the messages that are complete now.

        Raises:
          WireError: for a line that is no JSON object, or has no end.
        """
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._held_bytes = [], 0
        self._parts.append(rest)
        self._held_bytes += len(rest)
        if self._held_bytes > MAX_LINE_BYTES:
            raise WireError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not a line of JSON: {line[:80]!r}") from error
    if not isinstance(message, dict):
        raise WireError(f"not a JSON object: {line[:80]!r}")
    return message
