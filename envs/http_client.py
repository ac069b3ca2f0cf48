"""One HTTP request a connection, over trio: what a client of a model's server needs, and no more.

Invariant: a request that ends, fails or is cancelled leaves no connection, and a server can't make
it read more than `max_bytes`. No redirects, proxies or compression.
"""

import http.client
import io
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import trio

_READ_BYTES = 1 << 16
_HEAD_BYTES = 1 << 16


class HttpError(Exception):
    """There was no whole answer: no connection, or one that broke, or that isn't HTTP."""


@dataclass(frozen=True)
class HttpReply:
    """What a server answered.

    Attributes:
      headers: by lower-case name.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def check_url(url: str) -> SplitResult:
    """Return a URL's parts.

    Raises:
      ValueError: for one that isn't http or https, or has no host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"a URL must begin with http://host or https://host, got {url!r}")
    _ = parts.port  # raises for one that is no number
    return parts


async def post_json(
    url: str, body: Any, *, headers: Mapping[str, str], max_bytes: int = 1 << 22
) -> HttpReply:
    """Post a JSON value and return the answer.

    Raises:
      HttpError: if there is none.
      ValueError: for a wrong URL.
    """
    parts = check_url(url)
    try:
        stream = await _connect(parts)
        async with stream:
            await stream.send_all(_request(parts, json.dumps(body).encode(), headers))
            return await _Reader(stream, max_bytes).reply()
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        where = f"{parts.hostname}:{_port(parts)}"
        raise HttpError(f"no connection to {where}: {type(error).__name__}: {error}") from error


async def _connect(parts: SplitResult) -> trio.abc.Stream:
    assert parts.hostname is not None
    if parts.scheme == "http":
        return await trio.open_tcp_stream(parts.hostname, _port(parts))
    context = ssl.create_default_context()
    return await trio.open_ssl_over_tcp_stream(
        parts.hostname, _port(parts), https_compatible=True, ssl_context=context
    )


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _request(parts: SplitResult, body: bytes, headers: Mapping[str, str]) -> bytes:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    named = {
        "Host": parts.netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or URL of a request holds a line break")
    return "\r\n".join([*lines, "", ""]).encode() + body


class _Reader:
    """Reads one answer from a stream."""

    def __init__(self, stream: trio.abc.ReceiveStream, max_bytes: int):
        self._stream = stream
        self._left = max_bytes + _HEAD_BYTES
        self._buffer = bytearray()

    async def reply(self) -> HttpReply:
        while True:
            status, headers = _head(await self._until(b"\r\n\r\n"))
            if status >= 200:  # those below announce another head
                return HttpReply(status, headers, await self._body(headers))

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._chunks()
        if "content-length" in headers:
            return await self._exactly(_size(headers["content-length"], 10))
        while await self._receive():
            pass
        return bytes(self._buffer)

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := _size((await self._until(b"\r\n")).partition(b";")[0].decode(), 16):
            body += (await self._exactly(size + 2))[:-2]
        return bytes(body)  # what may follow is of no interest

    async def _until(self, end: bytes) -> bytes:
        while (place := self._buffer.find(end)) < 0:
            await self._receive_more()
        found = bytes(self._buffer[:place])
        del self._buffer[: place + len(end)]
        return found

    async def _exactly(self, size: int) -> bytes:
        if size > self._left + len(self._buffer):
            raise HttpError("the answer is too long")
        while len(self._buffer) < size:
            await self._receive_more()
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    async def _receive_more(self) -> None:
        if not await self._receive():
            raise HttpError("the connection was closed before the answer's end")

    async def _receive(self) -> bool:
        data = await self._stream.receive_some(_READ_BYTES)
        self._left -= len(data)
        if self._left < 0:
            raise HttpError("the answer is too long")
        self._buffer += data
        return bool(data)


def _head(text: bytes) -> tuple[int, dict[str, str]]:
    status_line, _, rest = text.partition(b"\r\n")
    words = status_line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise HttpError(f"the answer is not HTTP: {status_line[:100]!r}")
    try:
        headers = http.client.parse_headers(io.BytesIO(rest + b"\r\n\r\n"))
    except http.client.HTTPException as error:
        raise HttpError(f"the answer's headers are not HTTP: {error}") from error
    return int(words[1]), {name.lower(): value for name, value in headers.items()}


def _size(text: str, base: int) -> int:
    try:
        size = int(text.strip(), base)
    except ValueError:
        size = -1
    if size < 0:
        raise HttpError(f"the answer's length is {text[:100]!r}, which is no number")
    return size
