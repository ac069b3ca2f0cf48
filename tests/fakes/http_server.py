"""A server on this machine that says what a test wants, byte by byte."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

Reply = bytes | float | None
"""Bytes to send; seconds to hang; None to close the connection at once."""


@dataclass
class Server:
    """Answers each request with the next reply, the last one again and again."""

    replies: list[Reply]
    requests: list[tuple[bytes, dict]] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0
    url: str = ""

    async def handle(self, stream: trio.SocketStream) -> None:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            head, body = await self._read(stream)
            reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
            self.requests.append((head, json.loads(body)))
            if isinstance(reply, float):
                with trio.move_on_after(reply):
                    await stream.receive_some(1)  # until the client gives up
            elif reply is not None:
                await stream.send_all(reply)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open_now -= 1
            await trio.aclose_forcefully(stream)

    async def _read(self, stream: trio.SocketStream) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive_some(1 << 16)
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(body) < size:
            body += await stream.receive_some(1 << 16)
        return head, body


@asynccontextmanager
async def serving(*replies: Reply) -> AsyncIterator[Server]:
    server = Server(list(replies))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.handle, 0)
        port = listeners[0].socket.getsockname()[1]
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server
        nursery.cancel_scope.cancel()


def reply(body: object, status: int = 200, headers: str = "", *, chunked: bool = False) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    if chunked:
        half = len(data) // 2
        parts = [data[:half], data[half:], b""]
        sent = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts)
        headers += "Transfer-Encoding: chunked\r\n"
    else:
        sent = data
        headers += f"Content-Length: {len(data)}\r\n"
    return f"HTTP/1.1 {status} Fine\r\n{headers}\r\n".encode() + sent


def completion(text: str, **options: object) -> bytes:
    return reply({"choices": [{"message": {"role": "assistant", "content": text}}]}, **options)
