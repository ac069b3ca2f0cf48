"""Requests to a supervisor and their answers, over any stream.

Invariant: each request that was sent is answered once: by the supervisor, or by
`ConnectionLost` when the stream ends.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio

from .protocol import SandboxError, SandboxFileError
from .supervisor.wire import LineBuffer, WireError, encode

_READ_BYTES = 1 << 20
_GONE = "the sandboxes' supervisor is gone"


class ConnectionLost(SandboxError):
    """The supervisor is gone, and with it all of its sandboxes."""


class Pending:
    """A request whose answer may still be to come."""

    def __init__(self, number: int) -> None:
        self.id = number
        self._answered = trio.Event()
        self._answer: dict[str, Any] | ConnectionLost = {}

    def answer(self, fields: dict[str, Any] | ConnectionLost) -> None:
        """Take the answer, or why there will be none."""
        self._answer = fields
        self._answered.set()

    async def wait(self) -> dict[str, Any]:
        """Return the answer.

        Raises:
          ConnectionLost: if the stream ended first.
          SandboxFileError: if the supervisor refuses.
          SandboxError: for a fault of the machine.
        """
        await self._answered.wait()
        return _checked(self._answer)


class Connection:
    """A supervisor at the other end of a stream."""

    def __init__(self, send: trio.abc.SendStream, receive: trio.abc.ReceiveStream) -> None:
        self._send = send
        self._receive = receive
        self._writing = trio.Lock()
        self._pending: dict[int, Pending] = {}
        self._count = 0
        self._loss = _GONE
        self.is_lost = False

    async def post(self, op: str, **fields: Any) -> Pending:
        """Send a request. Once begun this can't be cancelled, so who sends knows the id.

        Raises:
          ConnectionLost: if the stream has ended.
        """
        self._count += 1
        pending = self._pending[self._count] = Pending(self._count)
        await self._write({"id": pending.id, "op": op, **fields})
        return pending

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request; return the answer. Raises what `post` and `Pending.wait` raise."""
        return await (await self.post(op, **fields)).wait()

    async def _write(self, message: dict[str, Any]) -> None:
        if self.is_lost:
            raise ConnectionLost(self._loss)
        data = encode(message)
        # Half a line would be the end of all others, so a line isn't cancelled.
        with trio.CancelScope(shield=True):
            async with self._writing:
                try:
                    await self._send.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    raise ConnectionLost(self._loss) from None

    async def listen(self) -> None:
        """Hand answers to those who wait, until the stream ends."""
        lines = LineBuffer()
        try:
            while data := await self._receive.receive_some(_READ_BYTES):
                for answer in lines.feed(bytes(data)):
                    self._hand_over(answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except WireError as error:
            self._loss = f"the sandboxes' supervisor doesn't keep to the protocol: {error}"
        finally:
            self.is_lost = True
            for pending in self._pending.values():
                pending.answer(ConnectionLost(self._loss))

    def _hand_over(self, answer: dict[str, Any]) -> None:
        number = answer.get("id")
        if not isinstance(number, int):
            raise WireError(f"an answer's id must be that of its request, got {number!r}")
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.answer(answer)

    async def aclose(self) -> None:
        """Close the stream, which lets the supervisor end everything."""
        await trio.aclose_forcefully(self._send)
        await trio.aclose_forcefully(self._receive)


@contextmanager
def understood(op: str) -> Iterator[None]:
    """Take an answer apart in a block.

    Raises:
      SandboxError: if it isn't what the protocol says, as of a server of another version.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxError(
            f"the sandboxes' supervisor gave no answer to {op!r} that is one "
            f"({type(error).__name__}: {error}); use a server of this version"
        ) from error


def _checked(answer: dict[str, Any] | ConnectionLost) -> dict[str, Any]:
    if isinstance(answer, ConnectionLost):
        raise ConnectionLost(str(answer))  # an exception of each one who waits
    if "error" not in answer:
        return answer
    refused = answer.get("kind") == "refused"
    raise (SandboxFileError if refused else SandboxError)(str(answer["error"]))
