"""One program in a sandbox, from its start to a result in which everything is dead.

Invariant: `done` is called once. How a program ended is said by the runner, with a nonce, and by
the kernel's own counts; nothing that the program prints or returns can claim a limit. A sandbox
that dies although nobody here ended it was ended from outside, which is no result of the program.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import cgroups
from .host import Host
from .instance import Instance
from .judging import Evidence, judge
from .loop import Loop
from .runner import descendants, read_small
from .wire import pack

_READ_BYTES = 1 << 16
_STOP_SECONDS = 1.0  # for the runner to end the program; then the sandbox is killed
_LOOK_SECONDS = 0.1
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_OUTPUTS = ("stdout", "stderr")


class Call:
    """A running program."""

    def __init__(self, loop: Loop, host: Host, instance: Instance, job: Mapping[str, Any]) -> None:
        """Prepare; nothing runs before `start`.

        Args:
          job: `argv`, `code` and `stdin` as bytes, `files` as pairs of a path and bytes,
            `limits`.
        """
        self._loop = loop
        self._host = host
        self._instance = instance
        self._job = job
        self._limits = job["limits"]
        self._done: Callable[[dict[str, Any]], None] | None = None
        self._nonce = secrets.token_hex(16)
        self._number = instance.next_call()
        self._outputs: dict[str, bytearray] = {name: bytearray() for name in _OUTPUTS}
        self._pipes: dict[str, int] = {}
        self._report: dict[str, Any] | None = None
        self._stopped = ""  # why we ended it
        self._timers: list[Any] = []
        self._began = time.monotonic()
        self._peak_bytes = 0

    def start(self, done: Callable[[dict[str, Any]], None]) -> None:
        """Run the program; `done` gets the fields of the result.

        Raises:
          OSError: if the kernel doesn't take the limits; nothing runs then.
        """
        self._machine_oom_before = cgroups.oom_kills_of_the_machine()
        try:
            self._instance.group.limit(**self._host.group_limits(self._limits))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            self._stopped = "memory"  # files of earlier calls hold more than this one may use
            done(self._result())
            return
        self._done = done
        self._instance.on_message = self._heard
        self._instance.on_gone.append(self._lost)
        try:
            self._send()
        except OSError:  # no descriptor or memory is left for what it needs
            self._instance.kill()
        self._after(self._limits["wall_seconds"], "wall")
        if self._host.is_polled:
            self._timers.append(self._loop.after(_LOOK_SECONDS, self._look))

    def cancel(self) -> None:
        """End the program because nobody wants it any more."""
        self._stop("cancelled")

    def _send(self) -> None:
        blobs, places = b"", []
        for path, data in self._job["files"]:
            places.append((path, len(blobs), len(data)))
            blobs += data
        head = json.dumps(
            {
                "argv": self._job["argv"],
                "files": places,
                "code_at": len(blobs),
                "code_bytes": len(self._job["code"]),
                "rlimits": self._host.rlimits(self._limits),
                "max_files": self._host.max_files(self._limits),
                "disk_bytes": self._limits["disk_bytes"],
            }
        ).encode()
        given = list[int]()
        try:
            given.append(sealed(head + blobs + self._job["code"]))
            given.append(sealed(self._job["stdin"]))
            for name in _OUTPUTS:
                self._pipes[name], end = os.pipe2(os.O_CLOEXEC)
                given.append(end)
                os.set_blocking(self._pipes[name], False)
                self._loop.watch(self._pipes[name], self._reader(name))
            self._instance.send({"op": "exec", "call": self._number, "head": len(head)}, given)
            self._instance.send({"op": "go", "nonce": self._nonce})
        finally:
            for fd in given:
                os.close(fd)

    # While it runs.

    def _reader(self, name: str) -> Callable[[], None]:
        def read() -> None:
            held, room = self._outputs[name], self._limits["output_bytes"]
            try:
                data = os.read(self._pipes[name], _READ_BYTES)
            except BlockingIOError:
                return
            held += data[: room - len(held) + 1]  # one more shows that there is more
            if not data:
                self._close(name)
                self._finish_if_over()
            elif len(held) > room:
                self._stop("output")

        return read

    def _close(self, name: str) -> None:
        fd = self._pipes.pop(name, None)
        if fd is not None:
            self._loop.unwatch(fd)
            os.close(fd)

    def _look(self) -> None:
        """Count what the kernel doesn't limit on this machine."""
        pids = descendants(self._instance.pid)
        self._peak_bytes = max(self._peak_bytes, sum(map(_resident_bytes, pids)))
        room = self._host.group_limits(self._limits)
        if self._peak_bytes > room["memory_bytes"]:
            self._stop("memory")
        elif len(pids) > room["processes"]:
            self._stop("processes")
        elif self._done is not None:
            self._timers.append(self._loop.after(_LOOK_SECONDS, self._look))

    def _after(self, seconds: float, why: str) -> None:
        def stop() -> None:
            self._stop(why)

        self._timers.append(self._loop.after(seconds, stop))

    def _stop(self, why: str) -> None:
        if self._stopped or self._done is None:
            return
        self._stopped = why
        self._instance.send({"op": "stop", "call": self._number})
        self._timers.append(self._loop.after(_STOP_SECONDS, self._instance.kill))

    # Its end.

    def _heard(self, message: dict[str, Any], fds: list[int]) -> None:
        if secrets.compare_digest(str(message.get("nonce")), self._nonce):
            self._report = message
            self._timers.append(self._loop.after(_STOP_SECONDS, self._instance.kill))
            self._finish_if_over()

    def _lost(self) -> None:
        for name in _OUTPUTS:
            self._drain(name)
        self._finish()

    def _drain(self, name: str) -> None:
        with contextlib.suppress(BlockingIOError):
            room = self._limits["output_bytes"] + 1
            while name in self._pipes and len(self._outputs[name]) < room:
                data = os.read(self._pipes[name], _READ_BYTES)
                if not data:
                    break
                self._outputs[name] += data[: room - len(self._outputs[name])]
        self._close(name)

    def _finish_if_over(self) -> None:
        """Finish if all writers are dead and the runner has said how the program ended."""
        if self._report is not None and not self._pipes and not self._instance.is_ending:
            self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        for timer in self._timers:
            timer.cancel()
        self._instance.on_gone.remove(self._lost)
        self._instance.forget_messages()
        done(self._result())

    def _result(self) -> dict[str, Any]:
        report = self._report or {}
        status, cause = judge(report, self._evidence())
        room = self._limits["output_bytes"]
        problem = str(report.get("problem", "")).encode()
        stdout, stderr = (bytes(self._outputs[name]) for name in _OUTPUTS)
        return {
            "status": status,
            "cause": cause,
            "exit_code": report.get("exit") if status in ("ok", "error") else None,
            "stdout": pack(stdout[:room]),
            "stderr": pack((stderr + problem)[:room]),
            "truncated": len(stdout) > room or len(stderr) > room,
            "workspace_lost": self._instance.is_gone,
            "usage": {
                "wall_seconds": time.monotonic() - self._began,
                "cpu_seconds": report.get("cpu_seconds", 0.0),
                "peak_memory_bytes": max(self._peak_bytes, report.get("peak_bytes", 0)),
                "processes_killed": report.get("killed", 0),
            },
        }

    def _evidence(self) -> Evidence:
        group, is_counted = self._instance.group, self._host.layout.memory is not None
        room_bytes = self._host.group_limits(self._limits)["memory_bytes"]
        return Evidence(
            stopped=self._stopped,
            group_ran_out=group.ran_out(),
            machine_ran_out=group.machine_ran_out() if is_counted else self._machine_ran_out(),
            died=self._instance.problem,
            can_die_from_inside=self._host.can_die_from_inside,
            memory_bytes=None if is_counted else room_bytes,
            cpu_seconds=self._host.cpu_seconds(self._limits),
        )

    def _machine_ran_out(self) -> bool:
        return cgroups.oom_kills_of_the_machine() > self._machine_oom_before


def sealed(data: bytes) -> int:
    """Return a descriptor of memory that holds this and can't be changed, read from its start."""
    fd = os.memfd_create("given", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


def _resident_bytes(pid: int) -> int:
    """Return the memory of a process, without the pages of files that it only reads."""
    with contextlib.suppress(OSError):
        lines = [line.split() for line in read_small(f"/proc/{pid}/status").splitlines()]
        return sum(int(line[1]) << 10 for line in lines if line[0] in (b"RssAnon:", b"RssShmem:"))
    return 0
