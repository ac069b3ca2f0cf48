"""What waits inside a sandbox for programs to run, and reports how they ended.

It is given to a bare interpreter as text (`python -c`), so it imports the standard library
alone, and as little of it as possible. A program runs in a fork of this process, which is why
a call needs no start of an interpreter. The runner itself can't be read or traced by the
program (it isn't dumpable), nor signalled (the shield, see `seccomp`), and the program holds
no end of the channel to the supervisor.

Invariant: a report is sent after every process that the program started is dead, and carries
the nonce that came after the program was forked, so that no program has ever known it.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

MAX_DATAGRAM_BYTES = 65536
_POLL_MILLISECONDS = 50
_KILL_SECONDS = 5.0
_SMALL_BYTES = 1 << 16
_DUMPABLE, _SECCOMP, _DROP_BOUNDING, _SUBREAPER, _NO_NEW_RIGHTS = 4, 22, 24, 36, 38  # prctl
_SECCOMP_FILTER = 2
_INSTRUCTION = struct.Struct("=HBBI")
_RUNNER, _EVERYONE_WITH_RUNNER = 0x7F000001, 0x7F000002  # as in `seccomp`
_CAPABILITIES_VERSION = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


class Runner:
    """One sandbox's inside: it answers the supervisor until the channel closes."""

    def __init__(self, channel: socket.socket, settings: dict[str, Any]) -> None:
        """Args:
        channel: to the supervisor, with one message a datagram.
        settings: `work` the writable folder; `path` for imports; `environment` of programs;
          `own_pids` whether all processes that can be seen are the sandbox's; `shield` a
          filter in hexadecimal, or "".
        """
        self._channel = channel
        self._settings = settings
        pid = os.getpid()
        group = os.getpgrp() or pid  # 0 if it lies outside, where no program can name it
        self._shield = filled_in(bytes.fromhex(settings["shield"]), pid, group)
        self._work = os.open(settings["work"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

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
        with contextlib.suppress(PermissionError):  # where the folder is a program's own to lock
            os.fchmod(self._work, 0o1777)
        pid, problem = 0, self._put_files(payload, head_bytes, job["files"])
        code = os.pread(payload, job["code_bytes"], head_bytes + job["code_at"])
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not problem:
            try:
                pid = os.fork()
            except OSError as error:
                problem = f"can't start the program: {error.strerror}"
            else:
                if pid == 0:
                    program = _Program(job, code, self._settings, self._shield)
                    program.start(fds, (self._channel, self._work))
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
        used = os.fstatvfs(self._work)
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

    def _put_files(self, payload: int, offset: int, files: list[Any]) -> str:
        for path, at, size in files:
            try:
                self._write(path, payload, offset + at, size)
            except OSError as error:
                return f"can't write {path!r}: {error.strerror}"
        return ""

    def _write_files(self, head_bytes: int, payload: int) -> None:
        files = json.loads(os.pread(payload, head_bytes, 0))["files"]
        self._send({"problem": self._put_files(payload, head_bytes, files)})

    def _write(self, path: str, payload: int, at: int, size: int) -> None:
        folder, name = self._walk(path, make=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(name, flags | os.O_CLOEXEC, 0o666, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            _require_plain(fd)
            while size > 0:
                done = os.write(fd, os.pread(payload, min(size, 1 << 20), at))
                at, size = at + done, size - done
        finally:
            os.close(fd)

    def _read(self, path: str) -> None:
        """Hand the opened file over: the supervisor reads no path of the sandbox's."""
        try:
            folder, name = self._walk(path, make=False)
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=folder)
            finally:
                os.close(folder)
        except OSError as error:
            self._send({"problem": f"can't read {path!r}: {error.strerror}"})
            return
        try:
            _require_plain(fd)
            self._send({"problem": ""}, (fd,))
        except OSError as error:
            self._send({"problem": f"can't read {path!r}: {error.strerror}"})
        finally:
            os.close(fd)

    def _walk(self, path: str, *, make: bool) -> tuple[int, str]:
        """Open the folder of a path, part by part, so that no link leads out of it."""
        *parts, name = path.split("/")
        folder = os.dup(self._work)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        for part in parts:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, flags, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder, name


class _Program:
    """The forked child, on its way to being the program."""

    def __init__(
        self, job: dict[str, Any], code: bytes, settings: dict[str, Any], shield: bytes
    ) -> None:
        self._job = job
        self._code = code
        self._settings = settings
        self._shield = shield

    def start(self, fds: list[int], keep_out: tuple[socket.socket, int]) -> NoReturn:
        """Become the program; whatever goes wrong, never return into the runner."""
        status = 127
        try:
            self._let_go(fds, keep_out)
            self._limit()
            if self._job["argv"]:
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which interpreters ignore
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(self._job["argv"][0], self._job["argv"], os.environ)
            status = self._run()
        except OSError as error:
            os.write(2, f"{self._job['argv'][:1] or 'the program'}: {error.strerror}\n".encode())
        finally:
            os._exit(status)

    def _let_go(self, fds: list[int], keep_out: tuple[socket.socket, int]) -> None:
        os.setsid()
        _, stdin, stdout, stderr = fds
        for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        keep_out[0].close()
        os.closerange(3, 4096)
        _LIBC.prctl(_DUMPABLE, 1, 0, 0, 0)
        os.chdir(self._settings["work"])
        os.environ.clear()
        os.environ.update(self._settings["environment"])

    def _limit(self) -> None:
        with contextlib.suppress(OSError):  # before the runner, which reports what happened
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC), b"1000")
        os.closerange(3, 4)
        for name, soft, hard in self._job["rlimits"]:
            resource.setrlimit(name, (soft, hard))
        if self._shield:
            _install(self._shield)

    def _run(self) -> int:
        """Run the code as a script would be; return its exit code."""
        main = ModuleType("__main__")
        main.__dict__["__file__"] = "main.py"
        sys.modules["__main__"] = main
        sys.argv[:] = ["main.py"]
        sys.path[:0] = [self._settings["work"], *self._settings["path"]]
        try:
            exec(compile(self._code, "main.py", "exec"), main.__dict__)
        except SystemExit as end:
            return _finish(_code_of(end))
        except BaseException as error:
            trace = error.__traceback__
            shown = error.with_traceback(trace.tb_next if trace else None)
            sys.excepthook(type(shown), shown, shown.__traceback__)
            return _finish(1)
        return _finish(0)


def _finish(status: int) -> int:
    """Do what an interpreter does at its end."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status


def _code_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _exit_code(status: int) -> int:
    return os.waitstatus_to_exitcode(status)


def _cpu_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _peak_bytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss * 1024


def filled_in(shield: bytes, pid: int, group: int) -> bytes:
    """Return the filter with the numbers of a runner in it."""
    known = {_RUNNER: pid, _EVERYONE_WITH_RUNNER: 2**32 - group}
    program = [
        (*rest, known.get(value, value)) for *rest, value in _INSTRUCTION.iter_unpack(shield)
    ]
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in program)


def _install(program: bytes) -> None:
    """Put a filter on this process and all that it will start.

    Raises:
      OSError: if the kernel doesn't take it.
    """
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // _INSTRUCTION.size, ctypes.addressof(held))
    if _LIBC.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0) or _LIBC.prctl(_SECCOMP, _SECCOMP_FILTER, header):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")


def _require_plain(fd: int) -> None:
    """Refuse what isn't a regular file with one name.

    Raises:
      OSError: saying what it is.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if found.st_nlink != 1:
        raise OSError(errno.EMLINK, "it has several names (hard links)")


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
            _LIBC.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _LIBC.capset(header, (ctypes.c_uint32 * 6)())
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)
    _LIBC.prctl(_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
    """Serve; the arguments are the channel's descriptor and the settings."""
    settings = json.loads(sys.argv[2])
    give_up_rights(settings["uid"])
    Runner(socket.socket(fileno=int(sys.argv[1])), settings).serve()


if __name__ == "__main__":
    main()
