"""Sandboxes of one supervisor, as a run uses them.

Invariant: what is opened is closed, also when it is cancelled, and closing waits until every
process is dead. All of it together outlives neither the block nor the run.
"""

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict
from typing import Any, get_args

import trio

from .config import SandboxConfig
from .connection import Connection, understood
from .limits import Limits
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
from .results import Result, Status, Usage
from .supervisor.wire import pack, unpack

_GRACE_SECONDS = 10.0  # a supervisor that is so much late is as good as dead


class Boxes:
    """Opens sandboxes at a supervisor."""

    def __init__(self, connection: Connection, config: SandboxConfig, guarantees: Guarantees):
        self._connection = connection
        self._config = config
        self._room = trio.Semaphore(config.max_open)
        self.guarantees = guarantees

    @property
    def is_lost(self) -> bool:
        """Whether the supervisor is gone, so that none can be opened any more."""
        return self._connection.is_lost

    @asynccontextmanager
    async def open(self) -> AsyncIterator[WatchedSandbox]:
        """Open a sandbox for a block; wait while too many are open.

        Raises:
          SandboxError: if it can't be started.
        """
        async with self._room:
            box = Box(self._connection, self._config, self.guarantees)
            try:
                await box.open()
                yield box
            finally:
                await box.close()


class Box:
    """One sandbox; see `Sandbox` for what its methods promise."""

    def __init__(
        self, connection: Connection, config: SandboxConfig, guarantees: Guarantees
    ) -> None:
        self._connection = connection
        self._config = config
        self._guarantees = guarantees
        self._name = new_name()
        self._calls = 0
        self._turn = trio.Lock()
        self._is_closed = False

    @property
    def guarantees(self) -> Guarantees:
        """What this machine enforces."""
        return self._guarantees

    async def open(self) -> None:
        """Start it."""
        with _patience():
            await self._connection.request("open", box=self._name)

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
        """Run a program until all of its processes are dead."""
        self._require_open()
        job = _job(program, stdin, files or {})
        async with self._turn:
            self._require_open()  # it may have been closed meanwhile
            self._calls += 1
            exec_id = f"{self._name}-{self._calls}"
            bounds = _bounds(limits or self._config.limits, deadline)
            if bounds["wall_seconds"] <= 0:
                return Result("timeout", exec_id=exec_id, cause="the deadline had passed")
            return await self._run(exec_id, {**job, "limits": bounds}, watch)

    async def _run(self, exec_id: str, job: dict[str, Any], watch: Watch) -> Result:
        watch.began(exec_id)
        result = _broken(exec_id, "the sandboxes' supervisor didn't say how it ended")
        with told_at_end(lambda: watch.ended(result)):
            try:
                call = await self._connection.post("exec", box=self._name, **job)
                try:
                    with _patience(job["limits"]["wall_seconds"]):
                        result = _result(exec_id, await call.wait())
                except trio.Cancelled:
                    with trio.move_on_after(_GRACE_SECONDS, shield=True), _calm():
                        await self._connection.request("cancel", call=call.id)
                        result = _result(exec_id, await call.wait())
                    raise
            except SandboxError as error:
                result = _broken(exec_id, str(error))
        return result

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the content of a file."""
        self._require_open()
        async with self._turn:
            with _patience():
                answer = await self._connection.request(
                    "read", box=self._name, path=path, max_bytes=max_bytes
                )
        with understood("read"):
            return unpack(answer["data"])

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the folders of its path."""
        self._require_open()
        async with self._turn:
            with _patience():
                await self._connection.request("write", box=self._name, path=path, data=pack(data))

    async def close(self) -> None:
        """End what runs and remove everything; again does nothing."""
        if not self._is_closed:
            self._is_closed = True
            with trio.move_on_after(_GRACE_SECONDS, shield=True), _calm():
                await self._connection.request("close", box=self._name)

    def _require_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the sandbox is closed; open another")


@contextmanager
def _patience(wall_seconds: float = 20.0) -> Iterator[None]:
    """Turn a supervisor that doesn't answer into an error."""
    try:
        with trio.fail_after(wall_seconds + _GRACE_SECONDS):
            yield
    except trio.TooSlowError:
        raise SandboxError("the sandboxes' supervisor doesn't answer") from None


def _calm() -> suppress:
    """A supervisor that is gone has taken its sandboxes along: nothing is left to end."""
    return suppress(SandboxError, SandboxFileError)


def _job(program: Program, stdin: bytes, files: Mapping[str, bytes]) -> dict[str, Any]:
    is_code = isinstance(program, str)
    argv = [] if is_code else list(program)
    if not is_code and not (argv and all(isinstance(part, str) for part in argv)):
        raise ValueError(f"a program must be code or a list of words, got {program!r}")
    if any("\0" in part for part in argv):
        raise ValueError("a program's words can't have a zero byte")
    code = program.encode(errors="surrogatepass") if isinstance(program, str) else b""
    packed = [(check_path(path), pack(data)) for path, data in files.items()]
    return {"argv": argv, "code": pack(code), "stdin": pack(stdin), "files": packed}


def check_path(path: str) -> str:
    """Return a path inside of a sandbox's folder.

    Raises:
      ValueError: for any other.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise ValueError(f"a path must be relative, without '..' or empty parts, got {path!r}")
    return path


def _bounds(limits: Limits, deadline: float | None) -> dict[str, Any]:
    """Return the limits as they are sent, the deadline among them."""
    left = math.inf if deadline is None else deadline - trio.current_time()
    return {**asdict(limits), "wall_seconds": min(limits.wall_seconds, left)}


def _result(exec_id: str, answer: Mapping[str, Any]) -> Result:
    with understood("exec"):
        if answer["status"] not in get_args(Status):
            raise ValueError(f"status must be one of {get_args(Status)}, got {answer['status']!r}")
        return Result(
            status=answer["status"],
            exit_code=answer["exit_code"],
            stdout=unpack(answer["stdout"]),
            stderr=unpack(answer["stderr"]),
            truncated=answer["truncated"],
            usage=Usage(**answer["usage"]),
            exec_id=exec_id,
            cause=answer["cause"],
            workspace_lost=answer["workspace_lost"],
        )


def _broken(exec_id: str, problem: str) -> Result:
    return Result("infrastructure", exec_id=exec_id, cause=problem, workspace_lost=True)
