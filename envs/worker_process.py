"""One worker process, as the run sees it.

Invariant: from `start` on the process belongs to a task of its own, `keep`, which leaves nothing
of it: no process of its group, no zombie, no descriptor. A call that isn't answered, for whatever
reason, is the last one: it kills the process.
"""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from .base import EPISODE
from .process_output import ProcessOutput
from .process_wire import HEADER, Answer, Call, Request, frame, read_answer

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[4]); "
    f"from {__package__}.process_worker import main; main()"
)
# Else sets of text have another order in each process, and what is drawn from them with one seed
# is another question in each.
_SAME_HASHES = ("/usr/bin/env", "PYTHONHASHSEED=0")
_LAST_OUTPUT_SECONDS = 0.5  # a child that left the group may hold the pipe open
_END_SECONDS = 5.0  # a killed process is gone in milliseconds, unless the kernel holds it
_READ_BYTES = 1 << 18
_OVERHEAD_BYTES = 1 << 16  # of an error's text, which the limit on results doesn't count


class WorkerProcessError(RuntimeError):
    """A worker process failed its episode: it raised, ended, or answered what it must not."""


class WorkerProcess:
    """A child interpreter that serves one environment at a time; see `start_process`.

    Attributes:
      episodes: so many it has served.
      is_dead: it was killed or has ended; it gets no more calls.
      gone: set when nothing is left of it.
    """

    def __init__(self, process: trio.Process, connection: socket.socket, lifeline: int, name: str):
        self._process = process
        self._socket = connection
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        self._lifeline = lifeline
        self._name = name
        self._life = trio.CancelScope()
        self.output = ProcessOutput(name)
        self.episodes = 0
        self.is_busy = False
        self.is_dead = False
        self.gone = trio.Event()

    @property
    def pid(self) -> int:
        """Of the process, and of its process group."""
        return self._process.pid

    def is_well(self) -> bool:
        """Whether it waits for a request: it has neither ended nor sent what nobody asked for."""
        if self.is_dead:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def call(self, call: Call, *arguments: Any, max_bytes: int) -> Answer:
        """Make a call in the process.

        Args:
          call: its name.
          arguments: of the call.
          max_bytes: a larger answer is an error.

        Raises:
          WorkerProcessError: if the process ends, or answers what isn't an answer.
          trio.Cancelled: at the deadline; the process is killed.
        """
        data = frame(Request(call, arguments, EPISODE.get()))
        self.is_busy = True
        try:
            await self._stream.send_all(data)
            return read_answer(await self._receive(max_bytes + _OVERHEAD_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError, _Ended) as error:
            raise WorkerProcessError(f"{self._name}.{call}: {await self.obituary()}") from error
        except pickle.UnpicklingError as error:
            self.kill()
            raise WorkerProcessError(
                f"{self._name}.{call} returned what can't be taken: {error}"
            ) from error
        except BaseException:
            self.kill()
            raise
        finally:
            self.is_busy = False

    async def _receive(self, max_bytes: int) -> bytes:
        (size,) = HEADER.unpack(await self._receive_exactly(HEADER.size))
        if size > max_bytes:
            raise pickle.UnpicklingError(f"{size} bytes, at most {max_bytes} are read")
        return await self._receive_exactly(size)

    async def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await self._stream.receive_some(min(_READ_BYTES, size - len(data)))
            if not part:
                raise _Ended
            data += part
        return bytes(data)

    async def obituary(self) -> str:
        """Kill it if it lives; say how it ended and what it wrote last."""
        self.kill()
        await self.wait_until_gone()
        return f"its process {_describe(self._process.returncode)}{self.output.last_words()}"

    async def wait_until_gone(self) -> None:
        """Wait until nothing is left of it, or for a time after which that is hopeless."""
        with trio.move_on_after(_END_SECONDS):
            await self.gone.wait()

    def kill(self) -> None:
        """Kill the process and its children at once; `keep` does the rest."""
        if self.is_dead:
            return
        self.is_dead = True
        apart = _descendants(self.pid)  # some may have a group or session of their own
        with suppress(ProcessLookupError, PermissionError):  # nobody is left in the group
            # Reaped in this very moment if at all, so no other has this number.
            os.killpg(self.pid, signal.SIGKILL)
        for child in apart:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        self._life.cancel()

    async def keep(self) -> None:
        """Pass on what it writes until it or the run ends; then leave nothing of it."""
        try:
            with self._life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass_on_output)
                    await self._process.wait()
                    nursery.cancel_scope.cancel()
        finally:
            self.kill()
            with trio.CancelScope(shield=True):
                await self._leave_nothing()

    async def _pass_on_output(self) -> None:
        assert self._process.stdout is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self.output.pass_on(self._process.stdout)

    async def _leave_nothing(self) -> None:
        assert self._process.stdout is not None
        with trio.move_on_after(_LAST_OUTPUT_SECONDS):
            await self._pass_on_output()
        self.output.end()
        with trio.move_on_after(_END_SECONDS):
            await self._process.wait()
        self._stream.socket.close()
        os.close(self._lifeline)
        await trio.aclose_forcefully(self._process.stdout)
        self.gone.set()


async def start_process(name: str) -> WorkerProcess:
    """Start a worker; its first call must be "start", and a task must run its `keep`.

    Raises:
      OSError: if the system has no process or descriptor for it.
    """
    ours, theirs = socket.socketpair()
    their_lifeline, lifeline = os.pipe()
    try:
        process = await _open_process(name, theirs.fileno(), their_lifeline)
    except BaseException:
        ours.close()
        os.close(lifeline)
        raise
    finally:
        theirs.close()
        os.close(their_lifeline)
    return WorkerProcess(process, ours, lifeline, name)


async def _open_process(name: str, connection: int, lifeline: int) -> trio.Process:
    arguments = [name, str(connection), str(lifeline), json.dumps(sys.path)]
    return await trio.lowlevel.open_process(
        [*_SAME_HASHES, sys.executable, "-c", _BOOT, *arguments],
        pass_fds=[connection, lifeline],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a group to kill; and Ctrl-C is for the run alone
    )


class _Ended(Exception):
    """The process closed its end of the socket."""


def _descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, without orphans; on Linux."""
    found: list[int] = []
    with suppress(OSError):  # it has just ended
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in path.read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def _describe(returncode: int | None) -> str:
    if returncode is None:
        return "doesn't end although it was killed"
    if returncode >= 0:
        return f"exited with status {returncode}"
    name = signal.Signals(-returncode).name
    hint = ""
    if name == "SIGKILL":
        hint = " (the kernel's if memory ran out, the run's if the process closed its files)"
    return f"was ended by {name}{hint}"
