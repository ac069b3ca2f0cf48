"""Answers a run's requests until the run is gone; then kills and removes everything.

Invariant: each request gets one answer, and after the last line of this process nothing of it
is left on the machine.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

from . import cgroups, leftovers
from .call import Call, sealed
from .host import Host
from .instance import Instance
from .loop import Loop
from .pool import Pool
from .wire import LineBuffer, WireError, encode, pack, unpack

_READ_BYTES = 1 << 20
_END_SECONDS = 10.0
_LOST = "the sandbox was killed from outside, and its files are gone"

Answer = Callable[[dict[str, Any]], None]


class Refused(ValueError):
    """The request asks for what isn't allowed; the run is told so."""


class Box:
    """A sandbox as the run sees it: it outlives the processes that it consists of now."""

    def __init__(self) -> None:
        self.instance: Instance | None = None
        self.call: Call | None = None
        self.is_closed = False


class Supervisor:
    """All sandboxes of one run."""

    def __init__(self, loop: Loop, host: Host, peer: tuple[int, int]) -> None:
        """Args:
        peer: the descriptors to read requests from and to write answers to.
        """
        self._loop = loop
        self._host = host
        self._source, self._sink = peer
        self._lines = LineBuffer()
        self._pool = Pool(loop, host)
        self._boxes: dict[str, Box] = {}
        self._calls: dict[int, Call] = {}
        loop.watch(self._source, self._read)

    def hello(self, request: dict[str, Any]) -> None:
        """Answer the first request, and get warm."""
        self._send({"id": request["id"], "guarantees": self._host.guarantees()})
        self._pool.refill()

    def close(self) -> None:
        """End everything, then the loop."""
        self._loop.unwatch(self._source)
        self._pool.close()
        self._until = time.monotonic() + _END_SECONDS
        self._end_when_empty()

    def _end_when_empty(self) -> None:
        if self._pool.alive and time.monotonic() < self._until:
            self._loop.after(0.002, self._end_when_empty)
        else:
            self._loop.stop()

    # Requests.

    def _read(self) -> None:
        try:
            data = os.read(self._source, _READ_BYTES)
            requests = self._lines.feed(data) if data else None
        except (OSError, WireError):
            requests = None
        if requests is None:
            self.close()
            return
        for request in requests:
            self._serve(request)

    def _serve(self, request: dict[str, Any]) -> None:
        def answer(fields: dict[str, Any]) -> None:
            self._send({"id": request["id"], **fields})

        try:
            self._operations[request["op"]](self, request, answer)
        except OSError as error:
            answer(_infrastructure(str(error)))
        except (Refused, KeyError, TypeError, WireError) as error:
            answer({"error": f"{error}", "kind": "refused"})

    def _send(self, message: dict[str, Any]) -> None:
        data = memoryview(encode(message))
        with contextlib.suppress(OSError):  # the run is gone, which reading will tell
            while data:
                data = data[os.write(self._sink, data) :]

    def _open(self, request: dict[str, Any], answer: Answer) -> None:
        box = self._boxes.setdefault(request["box"], Box())
        self._with_instance(box, lambda _: answer({}), answer)

    def _exec(self, request: dict[str, Any], answer: Answer) -> None:
        job = {
            "argv": request["argv"],
            "code": unpack(request["code"]),
            "stdin": unpack(request["stdin"]),
            "files": [(_checked(path), unpack(data)) for path, data in request["files"]],
            "limits": request["limits"],
        }
        box = self._box(request)

        def start(instance: Instance) -> None:
            call = Call(self._loop, self._host, instance, job)
            box.call = self._calls[request["id"]] = call
            try:
                call.start(done)
            except OSError as error:
                done(_infrastructure(f"limits: {error}"))

        def done(result: dict[str, Any]) -> None:
            box.call = None
            if result.get("workspace_lost"):
                box.instance = None
            self._calls.pop(request["id"], None)
            answer(result)

        self._with_instance(box, start, answer)

    def _read_file(self, request: dict[str, Any], answer: Answer) -> None:
        path, most = _checked(request["path"]), int(request["max_bytes"])

        def heard(message: dict[str, Any], fds: list[int]) -> None:
            if message["problem"] or not fds:
                answer({"error": message["problem"], "kind": "refused"})
            elif os.fstat(fds[0]).st_size > most:
                answer({"error": f"{path!r} has more than {most} bytes", "kind": "refused"})
            else:
                answer({"data": pack(os.pread(fds[0], most, 0))})

        def ask(instance: Instance) -> None:
            self._ask(instance, {"op": "read", "path": path}, heard=heard, answer=answer)

        self._with_instance(self._box(request), ask, answer)

    def _write_file(self, request: dict[str, Any], answer: Answer) -> None:
        path, data = _checked(request["path"]), unpack(request["data"])

        def heard(message: dict[str, Any], fds: list[int]) -> None:
            problem = message["problem"]
            answer({"error": problem, "kind": "refused"} if problem else {})

        def ask(instance: Instance) -> None:
            head = encode({"files": [(path, 0, len(data))]})
            message = {"op": "write", "head": len(head)}
            self._ask(instance, message, head + data, heard=heard, answer=answer)

        self._with_instance(self._box(request), ask, answer)

    def _ask(
        self,
        instance: Instance,
        message: dict[str, Any],
        payload: bytes | None = None,
        *,
        heard: Callable[[dict[str, Any], list[int]], None],
        answer: Answer,
    ) -> None:
        given = [] if payload is None else [sealed(payload)]

        def once(message: dict[str, Any], fds: list[int]) -> None:
            instance.forget_messages()
            instance.on_gone.remove(lost)
            heard(message, fds)

        def lost() -> None:
            instance.on_gone.remove(lost)
            answer(_infrastructure(_LOST))

        instance.on_message = once
        instance.on_gone.append(lost)
        instance.send(message, given)
        for fd in given:
            os.close(fd)

    def _close_box(self, request: dict[str, Any], answer: Answer) -> None:
        box = self._boxes.pop(request["box"], None)
        if box is not None:
            box.is_closed = True  # for the sandbox that it may be waiting for
        if box is None or box.instance is None or box.instance.is_gone:
            answer({})
            return
        box.instance.on_gone.append(lambda: answer({}))
        if box.call is not None:
            box.call.cancel()
        box.instance.kill()

    def _cancel(self, request: dict[str, Any], answer: Answer) -> None:
        call = self._calls.get(request["call"])
        if call is not None:
            call.cancel()
        answer({})

    def _box(self, request: dict[str, Any]) -> Box:
        box = self._boxes.get(request["box"])
        if box is None:
            raise Refused(f"there is no sandbox {request['box']!r}; open it first")
        if box.call is not None:
            raise Refused(f"the sandbox {request['box']!r} runs something; wait for it")
        return box

    def _with_instance(self, box: Box, use: Callable[[Instance], None], answer: Answer) -> None:
        """Use the box's processes; start new ones if it has none, or a call has lost them."""

        def taken(instance: Instance | None, problem: str) -> None:
            if instance is None:
                answer(_infrastructure(problem))
                return
            if box.is_closed:
                instance.kill()
                answer({"error": "the sandbox was closed meanwhile", "kind": "refused"})
                return
            box.instance = instance
            use(instance)

        if box.instance is None:
            self._pool.take(taken)
        elif box.instance.is_ending:  # between two calls; that its files are gone must be told
            box.instance = None
            answer(_infrastructure(_LOST))
        else:
            use(box.instance)

    _operations: ClassVar[dict[str, Callable[["Supervisor", dict[str, Any], Answer], None]]] = {
        "open": _open,
        "exec": _exec,
        "read": _read_file,
        "write": _write_file,
        "close": _close_box,
        "cancel": _cancel,
    }


def _infrastructure(problem: str) -> dict[str, Any]:
    return {"error": problem, "kind": "infrastructure"}


def _checked(path: str) -> str:
    """Return a path inside the sandbox's folder.

    Raises:
      Refused: for any other.
    """
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise Refused(f"a path must be relative, without '..' or empty parts, got {path!r}")
    return path


def first_request(source: int) -> dict[str, Any]:
    """Wait for the first request, which says what is wanted.

    Raises:
      WireError: if there is none.
    """
    lines = LineBuffer()
    while data := os.read(source, _READ_BYTES):
        for request in lines.feed(data):
            return request
    raise WireError("the peer has gone without a request")


def serve(peer: tuple[int, int], settings: dict[str, Any] | None = None) -> None:
    """Serve one run, until it goes away.

    Args:
      peer: the descriptors to read requests from and to write answers to.
      settings: of the sandboxes; None lets the run choose them.
    """
    try:
        request = first_request(peer[0])
    except WireError:
        return
    layout = cgroups.find()
    root = leftovers.state_root()
    leftovers.reap(root, layout)
    settings = settings or request["settings"]
    folder, _ = leftovers.claim(root, settings["run"])
    loop = Loop()
    host = Host(settings, layout, folder.name, folder)
    supervisor = Supervisor(loop, host, peer)
    supervisor.hello(request)
    loop.run(supervisor.close)
    cgroups.remove_all(layout, folder.name + "-")
    leftovers.remove(folder)


def main() -> None:
    """Serve the run at the other end of a descriptor."""
    fd = int(sys.argv[1])
    serve((fd, fd))


if __name__ == "__main__":
    main()
