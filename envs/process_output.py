"""What a worker process writes to its stdout and stderr, passed on by lines.

Invariant: a flood costs bounded memory, a bounded number of lines an episode, and little time:
beyond that number it is read slowly, so that the process waits and not the run.
"""

import sys
from collections import deque
from typing import Final

import trio

LINES_PER_EPISODE: Final = 200
_LAST_LINES = 20
_LINE_BYTES = 2000
_READ_BYTES = 1 << 16
_FLOOD_PAUSE_SECONDS = 0.01


class ProcessOutput:
    """The lines of one process, to stderr with the environment's name."""

    def __init__(self, name: str):
        self._name = name
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._rest = b""
        self._lines = 0

    async def pass_on(self, stream: trio.abc.ReceiveStream) -> None:
        """Pass on what is written until the stream ends."""
        while data := await stream.receive_some(_READ_BYTES):
            self.feed(bytes(data))
            if self._lines > LINES_PER_EPISODE:
                await trio.sleep(_FLOOD_PAUSE_SECONDS)

    def feed(self, data: bytes) -> None:
        """Take what was written."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = self._rest + lines[0]
        else:
            rest = self._rest + rest
        self._rest = rest[:_LINE_BYTES]
        for line in lines:
            self._pass_on_line(line)

    def end_episode(self) -> None:
        """Say how many lines were left out; the next ones are passed on again."""
        left_out = self._lines - LINES_PER_EPISODE
        if left_out > 0:
            self._write(f"({left_out} more lines left out)")
        self._lines = 0

    def end(self) -> None:
        """Pass on a line that has no end; there will be no more."""
        if self._rest:
            self.feed(b"\n")
        self.end_episode()

    def last_words(self) -> str:
        """Return the last lines, to be appended to a message; "" if there are none."""
        if not self._last:
            return ""
        return "\nit wrote last:\n" + "\n".join(f"  {line}" for line in self._last)

    def _pass_on_line(self, line: bytes) -> None:
        text = line[:_LINE_BYTES].decode(errors="replace").rstrip("\r")
        self._last.append(text)
        self._lines += 1
        if self._lines <= LINES_PER_EPISODE:
            self._write(text)

    def _write(self, text: str) -> None:
        sys.stderr.write(f"[{self._name}] {text}\n")
