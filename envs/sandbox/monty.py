"""Code in an interpreter of its own: Monty, which knows a part of Python and no machine.

It is an optional extra (`pip install pydantic-monty`); a call starts no process. There are no
files, no commands, no stdin, and few modules; what it doesn't know is an error of the program.

Invariant: an open sandbox runs one call at a time, and its worker is dead or idle when the call
ends.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pydantic_monty
import trio

from .config import SandboxConfig
from .limits import Limits
from .monty_call import MontyCall
from .names import new_name
from .protocol import (
    UNWATCHED,
    Guarantees,
    Program,
    SandboxError,
    SandboxFileError,
    Watch,
    WatchedSandbox,
    told_at_end,
)
from .results import Result

GUARANTEES = Guarantees(
    is_boundary=True,
    files="interpreter",
    network="interpreter",
    syscalls="interpreter",
    memory="interpreter",
    processes="interpreter",
    disk="interpreter",
    cpu="interpreter",
)
_LOOK_SECONDS = 0.1
_CHECKOUT_SECONDS = 20.0  # there is a worker for each open sandbox, so this is a fault
_UNSUPPORTED = "backend='monty' runs Python code alone: no commands, stdin or files"


@asynccontextmanager
async def open_workers(config: SandboxConfig) -> AsyncIterator["MontyBoxes"]:
    """Start workers for the sandboxes of a block.

    Raises:
      SandboxError: if they can't be started.
    """
    pool = pydantic_monty.Monty(
        min_processes=max(1, config.warm),
        max_processes=config.max_open,
        checkout_timeout=_CHECKOUT_SECONDS,
    )
    try:
        await trio.to_thread.run_sync(pool.__enter__)
    except (OSError, pydantic_monty.MontyError) as error:
        raise SandboxError(f"Monty can't be started: {error}") from error
    try:
        yield MontyBoxes(pool, config)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(pool.__exit__, None, None, None)


class MontyBoxes:
    """Opens sandboxes that share workers; the next call of one may have another worker."""

    is_lost = False

    def __init__(self, pool: pydantic_monty.Monty, config: SandboxConfig) -> None:
        self._pool = pool
        self._config = config
        self._room = trio.Semaphore(config.max_open)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[WatchedSandbox]:
        """Open a sandbox for a block; wait while too many are open."""
        async with self._room:
            box = MontyBox(self._pool, self._config)
            try:
                yield box
            finally:
                await box.close()


class MontyBox:
    """One sandbox; see `Sandbox` for what its methods promise."""

    def __init__(self, pool: pydantic_monty.Monty, config: SandboxConfig) -> None:
        self._pool = pool
        self._config = config
        self._name = new_name()
        self._calls = 0
        self._turn = trio.Lock()
        self._running: MontyCall | None = None
        self._is_closed = False

    @property
    def guarantees(self) -> Guarantees:
        """What the interpreter enforces."""
        return GUARANTEES

    async def exec(
        self,
        program: Program,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        watch: Watch = UNWATCHED,
    ) -> Result:
        """Run code until it ends; commands, stdin and files are refused.

        Raises:
          ValueError: for what isn't supported.
        """
        if not isinstance(program, str) or stdin or files:
            raise ValueError(f"{_UNSUPPORTED}; use backend='bwrap'")
        await self._take_turn()
        try:
            return await self._exec(program, limits or self._config.limits, deadline, watch)
        finally:
            self._turn.release()

    async def _take_turn(self) -> None:
        try:
            self._turn.acquire_nowait()  # no pass through the scheduler, which costs as much as
        except trio.WouldBlock:  # the interpreter does; the call itself waits for sure
            await self._turn.acquire()

    async def _exec(
        self, code: str, limits: Limits, deadline: float | None, watch: Watch
    ) -> Result:
        self._require_open()
        self._calls += 1
        exec_id = f"{self._name}-{self._calls}"
        left = limits.wall_seconds if deadline is None else deadline - trio.current_time()
        wall_seconds = min(limits.wall_seconds, left)
        if wall_seconds <= 0:
            return Result("timeout", exec_id=exec_id, cause="the deadline had passed")
        self._running = call = MontyCall(self._pool, code, limits, exec_id)
        watch.began(exec_id)
        with told_at_end(lambda: watch.ended(call.result)):
            await _run(call, wall_seconds)
        return call.result

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Refuse: there are no files.

        Raises:
          SandboxFileError: always.
        """
        raise SandboxFileError(_UNSUPPORTED)

    async def write(self, path: str, data: bytes) -> None:
        """Refuse: there are no files.

        Raises:
          SandboxFileError: always.
        """
        raise SandboxFileError(_UNSUPPORTED)

    async def close(self) -> None:
        """End what runs and refuse further calls; again does nothing."""
        self._is_closed = True
        if self._running is not None:
            self._running.stop("killed", "cancelled")
            with trio.CancelScope(shield=True):  # its worker is dead, so this is soon
                await self._take_turn()
            self._turn.release()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the sandbox is closed; open another")


async def _run(call: MontyCall, wall_seconds: float) -> None:
    """Run a call in a thread of trio's; kill its worker when time is up or nobody waits."""
    ended = trio.Event()
    outcomes: list[Any] = []
    token = trio.lowlevel.current_trio_token()

    def deliver(outcome: Any) -> None:
        outcomes.append(outcome)
        token.run_sync_soon(ended.set)

    # Less than `trio.to_thread` does, whose context and limiter would be a good part of the cost.
    trio.lowlevel.start_thread_soon(call.run, deliver)
    try:
        with trio.move_on_after(wall_seconds) as scope:
            while not ended.is_set():
                with trio.move_on_after(_LOOK_SECONDS):
                    await ended.wait()
                call.look()
        if scope.cancelled_caught:
            call.stop("timeout", "wall limit")
    finally:
        if not ended.is_set():
            call.stop("killed", "cancelled")
            with trio.CancelScope(shield=True):
                await ended.wait()
        outcomes[0].unwrap()
