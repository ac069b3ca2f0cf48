"""What waits inside a sandbox for programs to run, and reports how they ended.

It is given to a bare interpreter as text (`python -c`), together with `workspace` and `program`
(see `Host.runner_source`), so it imports the standard library alone, and as little as possible.
A program runs in a fork of this process, which is why a call needs no start of an interpreter.
The runner itself can't be read or traced by the program (it isn't dumpable), nor killed or stopped
(it is the first process inside, which the kernel keeps from every signal of the others), and the
program holds no end of the channel to the supervisor.

Invariant: a report is sent after every process that the program started is dead, and carries
the nonce that came after the program was forked, so that no program has ever known it.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

from .program import DUMPABLE, LIBC, Program
from .workspace import Workspace

MAX_DATAGRAM_BYTES = 65536
_POLL_MILLISECONDS = 50
_KILL_SECONDS = 5.0
_SMALL_BYTES = 1 << 16
_DEATH_SIGNAL, _DROP_BOUNDING, _SUBREAPER = 1, 24, 36  # prctl
_CAPABILITIES_VERSION = 0x20080522


class Runner:
    """One sandbox's inside: it answers the supervisor until the channel closes."""

    def __init__(self, channel: socket.socket, settings: dict[str, Any]) -> None:
        """Args:
        channel: to the supervisor, with one message a datagram.
        settings: `work` the writable folder; `path` for imports; `environment` of programs;
          `own_pids` whether all processes that can be seen are the sandbox's.
        """
        self._channel = channel
        self._settings = settings
        self._workspace = Workspace(settings["work"])

    def serve(self) -> None:
        """Answer requests until the supervisor goes away; then end what still runs."""
        self._send({"ready": True})
        while True:
            request, fds = self._receive()
            if not request:
                break
            try:
                self._answer(request, fds)
            finally:
                for fd in fds:
                    os.close(fd)
        self._kill_all()

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message; an empty one if the supervisor is gone."""
        data, fds, _, _ = socket.recv_fds(self._channel, MAX_DATAGRAM_BYTES, 4)
        return (json.loads(data) if data else {}), fds

    def _receive_nonce(self) -> str:
        while True:
            message, _ = self._receive()
            if "nonce" in message or not message:
                return str(message.get("nonce", ""))

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(self._channel, [json.dumps(message).encode()], list(fds))

    def _answer(self, request: dict[str, Any], fds: list[int]) -> None:
        if request["op"] == "exec":
            self._exec(request["call"], request["head"], fds)
        elif request["op"] == "read":
            self._read(request["path"])
        elif request["op"] == "write":
            self._write_files(request["head"], fds[0])

    # Programs.

    def _exec(self, call: int, head_bytes: int, fds: list[int]) -> None:
        payload = fds[0]
        job = json.loads(os.pread(payload, head_bytes, 0))
        self._workspace.unlock()
        pid, problem = 0, self._workspace.put(payload, head_bytes, job["files"])
        code = os.pread(payload, job["code_bytes"], head_bytes + job["code_at"])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not problem:
            try:
                pid = os.fork()
            except OSError as error:
                problem = f"can't start the program: {error.strerror}"
            else:
                if pid == 0:
                    program = Program(job, code, self._settings)
                    program.start(fds, (self._channel, self._workspace.fd))
        nonce = self._receive_nonce()
        report = {"problem": problem} if problem else self._watch(pid, call, job)
        cpu = _cpu_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - _cpu_seconds(before)
        self._send({"nonce": nonce, "cpu_seconds": cpu, **report})

    def _watch(self, pid: int, call: int, job: dict[str, Any]) -> dict[str, Any]:
        why = self._wait(os.pidfd_open(pid), call, job)
        if why:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        killed, left_peak_bytes = self._kill_all()
        return {
            "exit": _exit_code(status),
            "why": why,
            "killed": killed + bool(why),
            "peak_bytes": max(_peak_bytes(usage), left_peak_bytes),
            "own_cpu_seconds": _cpu_seconds(usage),
        }

    def _wait(self, pidfd: int, call: int, job: dict[str, Any]) -> str:
        """Wait for the program's end, or give a reason to end it."""
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.register(self._channel, select.POLLIN)
        try:
            while True:
                ready = [fd for fd, _ in poller.poll(_POLL_MILLISECONDS)]
                if pidfd in ready:
                    return ""
                if ready and self._is_told_to_stop(call):
                    return "stop"
                if self._too_much_disk(job):
                    return "disk"
        finally:
            os.close(pidfd)

    def _is_told_to_stop(self, call: int) -> bool:
        message, _ = self._receive()
        # A message for the call before may be late: that call had just ended by itself.
        return not message or (message["op"], message.get("call")) == ("stop", call)

    def _too_much_disk(self, job: dict[str, Any]) -> bool:
        if not self._settings["own_disk"]:
            return False
        used = os.fstatvfs(self._workspace.fd)
        held_bytes = (used.f_blocks - used.f_bfree) * used.f_frsize
        held_files = used.f_files - used.f_ffree
        return bool(held_files > job["max_files"] or held_bytes > job["disk_bytes"])

    def _kill_all(self) -> tuple[int, int]:
        """Kill all that a program left behind; return how many, and the largest one's memory."""
        killed, peak_bytes, until = 0, 0, time.monotonic() + _KILL_SECONDS
        while time.monotonic() < until:
            self._signal_all()
            try:
                pid, _, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid:
                killed, peak_bytes = killed + 1, max(peak_bytes, _peak_bytes(usage))
            else:
                time.sleep(0.0005)
        return killed, peak_bytes

    def _signal_all(self) -> None:
        if self._settings["own_pids"]:  # then "all" means the sandbox's
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    # Files.

    def _write_files(self, head_bytes: int, payload: int) -> None:
        files = json.loads(os.pread(payload, head_bytes, 0))["files"]
        self._send({"problem": self._workspace.put(payload, head_bytes, files)})

    def _read(self, path: str) -> None:
        """Hand the opened file over: the supervisor reads no path of the sandbox's."""
        try:
            fd = self._workspace.open_to_read(path)
        except OSError as error:
            self._send({"problem": f"can't read {path!r}: {error.strerror}"})
            return
        self._send({"problem": ""}, (fd,))
        os.close(fd)


def _exit_code(status: int) -> int:
    return os.waitstatus_to_exitcode(status)


def _cpu_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _peak_bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * 1024


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below one."""
    found = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, those of its threads included."""
    found: list[int] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in tasks:
            found += map(int, read_small(f"{task.path}/children").split())
    return found


def read_small(path: str) -> bytes:
    """Return the content of one of the kernel's small files.

    Raises:
      OSError: if it can't be read, for example since its process has ended.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _SMALL_BYTES)
    finally:
        os.close(fd)


def give_up_rights(uid: int | None) -> None:
    """Become a user without rights for good; hide from the programs.

    Args:
      uid: to become; None stays who it is.
    """
    if uid is not None:
        for capability in range(64):
            LIBC.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    LIBC.capset(header, (ctypes.c_uint32 * 6)())
    LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)
    LIBC.prctl(DUMPABLE, 0, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # with a handler, programs could send it


def main() -> None:
    """Serve; the arguments are the channel's descriptor and the settings."""
    settings = json.loads(sys.argv[2])
    give_up_rights(settings["uid"])
    if settings["own_pids"]:  # else this process must live on for a moment, to end its programs
        LIBC.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)  # forgotten when the user changed
    Runner(socket.socket(fileno=int(sys.argv[1])), settings).serve()


if __name__ == "__main__":
    main()
