"""One sandbox as processes: launched, waiting for work, killed, gone.

Invariant: `gone` is called once, and by then every process of the sandbox is dead and reaped,
and its group, folder and descriptors are no more.
"""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from . import cgroups, leftovers
from .host import Host
from .launch import RUNNER_ENVIRONMENT, inside_walls, runner_command
from .loop import Loop
from .runner import MAX_DATAGRAM_BYTES, children, descendants

_START_SECONDS = 20.0
_KILL_SECONDS = 1.0
_MESSAGE_BYTES = 2000


class Instance:
    """A running sandbox.

    Attributes:
      number: of this supervisor's sandboxes.
      pid: of the outermost process.
      group: its limits in the kernel.
      is_ending: it has been killed, or died; `on_gone` is still to be called.
      is_gone: nothing of it is left.
      is_ready: it waits for work, or does some.
      problem: of one that has ended, what it said last, or how it ended.
      on_ready: called when it is ready, or gone before that.
      on_message: called with each message of the runner and its descriptors.
      on_gone: called when nothing of it is left; take off what is no longer of interest, since an
        instance may serve many calls.
    """

    def __init__(self, loop: Loop, host: Host, number: int) -> None:
        """Launch it.

        Raises:
          OSError: if the machine doesn't let us.
        """
        self._loop = loop
        self._host = host
        self.number = number
        self.is_ready = False
        self.is_ending = False
        self.is_gone = False
        self.problem = ""
        self.on_ready: Callable[[], None] = _nothing
        self.on_message: Callable[[dict[str, Any], list[int]], None] = _ignore
        self.on_gone: list[Callable[[], None]] = []
        self._calls = 0
        self._inner: int | None = None  # a pidfd of the first process inside
        self._errors = os.memfd_create("errors")
        self.group = cgroups.Group(host.layout, f"{host.name}-{number}")
        self.pid = self._launch()
        loop.on_exit(self.pid, self._exited)
        self._too_slow = loop.after(_START_SECONDS, self.kill)

    # Starting.

    def _launch(self) -> int:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._info, info = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        filter_fd = _memory_file(self._host.filter()) if self._host.has_walls else None
        kept = [theirs.fileno(), *(fd for fd in (info, filter_fd) if fd is not None)]
        try:
            command = self._command(theirs.fileno(), info, filter_fd)
            pid = _spawn(command, kept, self._errors, self.group.enter)
        finally:
            theirs.close()
            for fd in kept[1:]:
                os.close(fd)
        self._loop.watch(self._channel.fileno(), self._receive)
        return pid

    def _command(self, channel: int, info: int, filter_fd: int | None) -> list[str]:
        python = self._host.settings["python"]
        settings = self._host.runner_settings(self.number)
        runner = runner_command(python, self._host.runner_source(), channel, settings)
        if self._host.has_walls:
            return inside_walls(self._host.walls(filter_fd), info, runner)
        self._host.work_folder(self.number).mkdir(parents=True)
        return runner

    def _became_ready(self) -> None:
        if self._host.has_walls:
            inner = int(json.loads(os.read(self._info, 4096))["child-pid"])
            self._inner = os.pidfd_open(inner)
        self._too_slow.cancel()
        self.is_ready = True
        self.on_ready()

    # Talking.

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send one message to the runner; a runner that is gone will be noticed elsewhere."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [json.dumps(message).encode()], fds or [])

    def forget_messages(self) -> None:
        """Hand messages to nobody until somebody else asks for them."""
        self.on_message = _ignore

    def next_call(self) -> int:
        """Return a number that no call of this sandbox has had."""
        self._calls += 1
        return self._calls

    def _receive(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._channel, MAX_DATAGRAM_BYTES, 4)
        except OSError:
            data, fds = b"", []
        if not data:
            self._loop.unwatch(self._channel.fileno())
            self.kill()
        elif not self.is_ready:
            self._became_ready()
        else:
            self.on_message(json.loads(data), fds)
        for fd in fds:
            os.close(fd)

    # Ending.

    def kill(self) -> None:
        """End it and all that is in it; `on_gone` says when."""
        if self.is_ending:
            return
        self.is_ending = True
        if not self._host.has_walls:
            self._loop.unwatch(self._channel.fileno())
            self._channel.shutdown(socket.SHUT_RDWR)  # the runner ends its programs, then itself
        elif self._inner is not None:
            signal.pidfd_send_signal(self._inner, signal.SIGKILL)  # and so the whole namespace
        else:
            self._kill_outer()
        self._too_slow.cancel()
        self._too_slow = self._loop.after(_KILL_SECONDS, self._kill_outer)

    def _kill_outer(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _exited(self, status: int) -> None:
        self._too_slow.cancel()
        self.is_ending = True
        self.problem = self._read_problem(status)
        if self._inner is None:
            self._end()
        else:  # readable once the first process inside is dead, and so are all others there
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)
            self._loop.watch(self._inner, self._end)

    def _end(self) -> None:
        if self._inner is not None:
            self._loop.unwatch(self._inner)
            os.close(self._inner)
        self._kill_orphans()
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        os.close(self._info)
        os.close(self._errors)
        self.group.remove()
        if not self._host.has_walls:
            leftovers.remove(self._host.work_folder(self.number))
        self.is_gone = True
        if not self.is_ready:
            self.on_ready()
        for callback in tuple(self.on_gone):  # some take themselves off
            callback()

    def _kill_orphans(self) -> None:
        """Kill what was inherited: processes whose runner was killed by what it ran."""
        for orphan in self._loop.strangers(children(os.getpid())):
            for pid in (orphan, *descendants(orphan)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _read_problem(self, status: int) -> str:
        text = os.pread(self._errors, _MESSAGE_BYTES, 0).decode(errors="replace").strip()
        return text or f"it ended with {os.waitstatus_to_exitcode(status)}"


def _memory_file(data: bytes | None) -> int | None:
    if data is None:
        return None
    fd = os.memfd_create("filter")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _spawn(command: list[str], kept: list[int], errors: int, enter: Callable[[], None]) -> int:
    """Start a process with these descriptors and nothing else of ours; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        enter()
        null = os.open("/dev/null", os.O_RDWR)
        for source, target in ((null, 0), (null, 1), (errors, 2)):
            os.dup2(source, target)
        for fd in kept:
            os.set_inheritable(fd, True)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(command[0], command, RUNNER_ENVIRONMENT)
    except OSError as error:
        os.write(errors, f"{command[0]}: {error.strerror}".encode())
    finally:
        os._exit(127)


def _nothing() -> None:
    """Nobody waits yet."""


def _ignore(message: dict[str, Any], fds: list[int]) -> None:
    """Nobody listens yet."""
