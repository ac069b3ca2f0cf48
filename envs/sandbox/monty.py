"""Code in an interpreter of its own: Monty, which knows a part of Python and no machine.

It is an optional extra (`pip install pydantic-monty`), about a hundred times faster to start
than a process with walls. There are no files, no commands, no stdin, and few modules; what it
doesn't know is an error of the program. Its workers are processes, so that one that is
cancelled or late is killed.

Invariant: a session is used for one call, and its worker is dead or idle when the call ends.
"""

import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import pydantic_monty
import trio

from .config import SandboxConfig
from .limits import Limits
from .names import new_name
from .protocol import Guarantees, Program, Sandbox, SandboxError, SandboxFileError
from .results import Result, Usage

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
_ENTRY_BYTES = 512  # what its collector of outputs counts for each piece, at most
_NO_WAITING: pydantic_monty.OSPolicy = {"sleep": "zero"}  # its sleeps can't be cut short
_UNSUPPORTED = "backend='monty' runs Python code alone: no commands, stdin or files"


@asynccontextmanager
async def open_workers(config: SandboxConfig) -> AsyncIterator["MontyBoxes"]:
    """Start workers for the sandboxes of a block.

    Raises:
      SandboxError: if they can't be started.
    """
    pool = pydantic_monty.Monty(min_processes=max(1, config.warm), max_processes=config.max_open)
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
    guarantees = GUARANTEES

    def __init__(self, pool: pydantic_monty.Monty, config: SandboxConfig) -> None:
        self._pool = pool
        self._config = config
        self._room = trio.CapacityLimiter(config.max_open)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Sandbox]:
        """Open a sandbox for a block."""
        box = MontyBox(self._pool, self._config, self._room)
        try:
            yield box
        finally:
            await box.close()


class MontyBox:
    """One sandbox; see `Sandbox` for what its methods promise."""

    guarantees = GUARANTEES

    def __init__(
        self, pool: pydantic_monty.Monty, config: SandboxConfig, room: trio.CapacityLimiter
    ) -> None:
        self._pool = pool
        self._config = config
        self._room = room
        self._name = new_name()
        self._calls = 0
        self._is_closed = False

    async def exec(
        self,
        program: Program,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run code until it ends; commands, stdin and files are refused.

        Raises:
          ValueError: for what isn't supported.
        """
        if not isinstance(program, str) or stdin or files:
            raise ValueError(f"{_UNSUPPORTED}; use backend='bwrap'")
        if self._is_closed:
            raise SandboxError("the sandbox is closed; open another")
        self._calls += 1
        exec_id = f"{self._name}-{self._calls}"
        bounds = limits or self._config.limits
        left = bounds.wall_seconds if deadline is None else deadline - trio.current_time()
        wall = min(bounds.wall_seconds, left)
        if wall <= 0:
            return Result("timeout", exec_id=exec_id, cause="the deadline had passed")
        call = _Call(self._pool, program, bounds)
        began = time.monotonic()
        result = await self._supervise(call, wall)
        usage = Usage(wall_seconds=time.monotonic() - began)
        return replace(result, exec_id=exec_id, usage=usage)

    async def _supervise(self, call: "_Call", wall_seconds: float) -> Result:
        """Wait for a call; kill its worker when time is up or nobody waits any more."""
        results: list[Result] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_in_thread, call, results, self._room))
            with trio.move_on_after(wall_seconds) as scope:
                try:
                    await call.ended.wait()
                finally:
                    call.kill()
        if scope.cancelled_caught and call.was_killed:
            return Result("timeout", cause="wall limit")
        return results[0]

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
        """Refuse further calls; no worker is this sandbox's between calls."""
        self._is_closed = True


class _Call:
    """One run of code in a worker."""

    def __init__(self, pool: pydantic_monty.Monty, code: str, limits: Limits) -> None:
        self._pool = pool
        self._code = code
        self._limits = limits
        self._worker: int | None = None
        self.was_killed = False
        self.ended = trio.Event()

    def run(self) -> Result:
        """Run it, in a worker thread."""
        bounds: pydantic_monty.ResourceLimits = {
            "max_feed_duration_secs": min(self._limits.cpu_seconds, self._limits.wall_seconds),
            "max_memory": self._limits.memory_bytes,
        }
        room = self._limits.output_bytes
        output = pydantic_monty.CollectStreams(max_bytes=room + _ENTRY_BYTES)
        try:
            with self._pool.checkout(limits=bounds, os_policy=_NO_WAITING) as session:
                self._worker = session.worker_pid  # not to be had while it works
                if self.was_killed:
                    return Result("killed", cause="cancelled")
                session.feed_run(self._code, print_callback=output)
        except pydantic_monty.MontyCrashedError as error:
            return _result("killed", f"the worker died: {error}", output, room)
        except pydantic_monty.MontySyntaxError as error:
            return _result("error", "exit 1", output, room, trace=error.display())
        except pydantic_monty.MontyRuntimeError as error:
            status, cause = _judge(error, output, room)
            return _result(status, cause, output, room, trace=error.display())
        finally:
            self._worker = None
        return _result("ok", "exit 0", output, room)

    def kill(self) -> None:
        """Kill the worker if it still works for this call."""
        if self.ended.is_set():
            return
        self.was_killed = True
        worker = self._worker
        if worker is not None:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


async def _in_thread(call: _Call, results: list[Result], room: trio.CapacityLimiter) -> None:
    try:
        with trio.CancelScope(shield=True):  # killing the worker is what ends it
            results.append(await trio.to_thread.run_sync(call.run, limiter=room))
    finally:
        call.ended.set()


def _judge(
    error: pydantic_monty.MontyRuntimeError, output: pydantic_monty.CollectStreams, room: int
) -> tuple[str, str]:
    inner = error.exception()
    if isinstance(inner, TimeoutError) and "time limit exceeded" in str(error):
        return "timeout", "cpu limit"
    if isinstance(inner, MemoryError):
        is_output = f"> {room + _ENTRY_BYTES} bytes" in str(error)
        return ("output_limit", "output limit") if is_output else ("oom", "memory limit")
    return "error", "exit 1"


def _result(
    status: str,
    cause: str,
    output: pydantic_monty.CollectStreams,
    room: int,
    *,
    trace: str = "",
) -> Result:
    texts = {"stdout": "", "stderr": ""}
    for stream, text in output.output:
        texts[stream] += text
    stdout = texts["stdout"].encode(errors="replace")
    stderr = (texts["stderr"] + trace).encode(errors="replace")
    code = {"ok": 0, "error": 1}.get(status)
    truncated = len(stdout) > room or len(stderr) > room or status == "output_limit"
    return Result(
        status=status,  # type: ignore[arg-type]  # one of the words above
        exit_code=code,
        stdout=stdout[:room],
        stderr=stderr[:room],
        truncated=truncated,
        cause=cause,
    )
