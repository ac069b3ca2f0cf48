"""Connections to supervisors: one started here, or one behind a command.

Invariant: when the block ends, however it ends, the supervisor has been let go, has ended every
sandbox and has exited itself, or was killed after a time of grace.
"""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from . import bwrap, rlimit
from .boxes import Boxes
from .config import SandboxConfig
from .connection import Connection, understood
from .protocol import Guarantees, SandboxError, SandboxUnavailable

_START_SECONDS = 30.0
_END_SECONDS = 15.0
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from supervisor.main import main; main()"


@asynccontextmanager
async def open_boxes(config: SandboxConfig, *, run: str = "run") -> AsyncIterator[Boxes]:
    """Start or reach a supervisor for the sandboxes of a block.

    Args:
      config: of its sandboxes; any backend but "monty".
      run: a name of the run, in the names of what is made on the machine.

    Raises:
      SandboxError: if it doesn't answer, or not as the protocol says.
      SandboxUnavailable: if what the backend needs isn't here, or it has no walls and the
        configuration wants some.
    """
    process, connection, settings = await _start(config, run)
    trio.lowlevel.spawn_system_task(connection.listen)  # ends with the stream
    try:
        guarantees = await _greet(connection, settings)
        if not (guarantees.is_boundary or config.allow_unsafe):
            raise SandboxUnavailable(
                f"is_boundary of {config.backend!r} is False: its programs can read and change "
                "everything that its user can; let the server use bwrap, or set "
                "allow_unsafe=True for code that you trust"
            )
        yield Boxes(connection, config, guarantees)
    finally:
        await _end(process, connection)


async def _start(
    config: SandboxConfig, run: str
) -> tuple[trio.Process, Connection, dict[str, Any] | None]:
    if config.backend == "remote":
        process = await trio.lowlevel.open_process(
            list(config.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if process.stdin is None or process.stdout is None:
            raise SandboxError("a command without pipes")
        return process, Connection(process.stdin, process.stdout), None
    settings = settings_of(config, run)
    process, stream = await _start_supervisor()
    return process, Connection(stream, stream), settings


def settings_of(config: SandboxConfig, run: str) -> dict[str, Any]:
    """Return what a supervisor of this machine needs to know; see `bwrap.settings`."""
    of_backend = bwrap.settings if config.backend == "bwrap" else rlimit.settings
    return of_backend(config, run)


async def _start_supervisor() -> tuple[trio.Process, trio.SocketStream]:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parent)]
        process = await trio.lowlevel.open_process(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which ends this process
            env={"PATH": os.defpath},  # and nothing else: no secret reaches it
        )
    return process, trio.SocketStream(trio.socket.from_stdlib_socket(ours))


async def _greet(connection: Connection, settings: dict[str, Any] | None) -> Guarantees:
    with trio.move_on_after(_START_SECONDS), understood("hello"):
        answer = await connection.request("hello", settings=settings)
        return Guarantees(**answer["guarantees"])
    raise SandboxError(f"the sandboxes' supervisor didn't answer in {_START_SECONDS:g} s")


async def _end(process: trio.Process, connection: Connection) -> None:
    """Let the supervisor go and wait until it has ended everything; kill it if it doesn't."""
    with trio.CancelScope(shield=True):
        await connection.aclose()
        with trio.move_on_after(_END_SECONDS):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
