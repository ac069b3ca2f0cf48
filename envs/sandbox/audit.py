"""The audit log: one line for each program that a run let run, chained by hashes.

Each line holds the hash of the line before it, so a line can't be changed, removed or put in
without changing every later one. What the chain can't show is that the last lines were cut
off, or that all was written anew: for that, keep `AuditReport.head` elsewhere.

Invariant: a record is written when its call has ended, before the caller sees the result; no
code, input or output is in it, only hashes and sizes.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import trio
from trio.lowlevel import RunVar

from .config import SandboxConfig
from .limits import Limits
from .names import safe_name
from .protocol import Guarantees, Program, Sandbox
from .results import Result

FILE_NAME = "sandbox.jsonl"
_START = "0" * 64
_TAIL_BYTES = 1 << 16  # a record is far shorter


class AuditError(ValueError):
    """The log isn't what was written; the text says where."""


@dataclass(frozen=True)
class AuditReport:
    """What a log's check has found.

    Attributes:
      records: how many there are.
      head: the hash of the last one.
      by_status: how many calls ended how.
      is_torn: the last line is unfinished, as after a kill.
    """

    records: int
    head: str
    by_status: Mapping[str, int]
    is_torn: bool


class AuditLog:
    """A log, opened by its first record. It goes on where an earlier one of the file ended."""

    def __init__(self, path: Path, run: str) -> None:
        """Args:
        path: of the file; made with the first record.
        run: the run's name, in each record.
        """
        self.run = safe_name(run)
        self._path = path
        self._fd: int | None = None
        self._sequence, self._head = 0, _START

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def record(self, fields: Mapping[str, Any]) -> None:
        """Append a record.

        Raises:
          AuditError: if the file's last record isn't one.
          OSError: if it can't be written.
        """
        fd = self._open()
        record = {"sequence": self._sequence, "run": self.run, **fields, "previous": self._head}
        self._head = _hash(record)
        line = json.dumps({**record, "hash": self._head}, separators=(",", ":")) + "\n"
        os.write(fd, line.encode())
        self._sequence += 1

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)

    def _open(self) -> int:
        if self._fd is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            self._sequence, self._head = _resume(self._fd)
        return self._fd


def verify_log(path: Path) -> AuditReport:
    """Check every record of a log.

    Raises:
      AuditError: at the first record that isn't what was written.
      OSError: if the file can't be read.
    """
    previous, by_status, count = _START, dict[str, int](), 0
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        record = _parse(line, number)
        claimed = record.pop("hash", None)
        if record.get("previous") != previous or record.get("sequence") != count:
            raise AuditError(f"line {number}: it doesn't follow the line before it")
        if claimed != _hash(record):
            raise AuditError(f"line {number}: its content doesn't match its hash")
        previous, count = str(claimed), count + 1
        status = str(record.get("status"))
        by_status[status] = by_status.get(status, 0) + 1
    return AuditReport(count, previous, by_status, is_torn=bool(lines[-1]))


def audit_run(run_folder: Path) -> str:
    """Check the log of a run; return what to tell the user. The command `headrace audit`.

    Raises:
      AuditError: if there is no log, or it isn't what was written.
    """
    path = run_folder / FILE_NAME
    if not path.is_file():
        raise AuditError(f"there is no {path}; a run that used no sandbox writes none")
    report = verify_log(path)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(report.by_status.items()))
    torn = "; the last line is unfinished, as after a kill" if report.is_torn else ""
    return (
        f"{path}: {report.records} calls ({counts or 'none'}), unchanged{torn}; head {report.head}"
    )


_CURRENT: RunVar[AuditLog] = RunVar("sandbox audit log")


@contextmanager
def audit_to(log: AuditLog) -> Iterator[None]:
    """Record the calls of all sandboxes that this trio run opens in the block."""
    token = _CURRENT.set(log)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_audit() -> AuditLog | None:
    """Return the log of this trio run; None where there is none."""
    try:
        return _CURRENT.get()
    except LookupError:
        return None


class AuditedSandbox:
    """A sandbox whose calls are recorded; see `Sandbox` for what its methods promise."""

    def __init__(
        self, inside: Sandbox, log: AuditLog, *, config: SandboxConfig, episode: str
    ) -> None:
        self._inside = inside
        self._log = log
        self._config = config
        self._common = {
            "episode": episode,
            "backend": config.backend,
            "policy": _digest(asdict(config)),
        }

    @property
    def guarantees(self) -> Guarantees:
        """What this machine enforces."""
        return self._inside.guarantees

    async def exec(
        self,
        program: Program,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run a program and record how it ended; a cancelled one is recorded as such."""
        given = _digests(program, stdin, files or {})
        began = time.monotonic()
        result = Result("killed", cause="cancelled")
        try:
            result = await self._inside.exec(
                program, stdin=stdin, files=files, limits=limits, deadline=deadline
            )
        except trio.Cancelled:
            self._record(given, limits, began, result)
            raise
        self._record(given, limits, began, result)
        return result

    def _record(
        self, given: Mapping[str, Any], limits: Limits | None, began: float, result: Result
    ) -> None:
        self._log.record(
            {
                **self._common,
                "exec_id": result.exec_id,
                **given,
                "limits": asdict(limits or self._config.limits),
                "began": began,
                "ended": time.monotonic(),
                "status": result.status,
                "cause": result.cause,
                "exit_code": result.exit_code,
                "stdout_bytes": len(result.stdout),
                "stderr_bytes": len(result.stderr),
                "usage": asdict(result.usage),
            }
        )

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the content of a file."""
        return await self._inside.read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the folders of its path."""
        await self._inside.write(path, data)

    async def close(self) -> None:
        """End what runs and remove everything; again does nothing."""
        await self._inside.close()


def _digests(program: Program, stdin: bytes, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return hashes of all that is run: a program may be in any of the three."""
    return {
        "program": _digest(program if isinstance(program, str) else list(program)),
        "stdin": hashlib.sha256(stdin).hexdigest(),
        "files": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()},
    }


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _hash(record: Mapping[str, Any]) -> str:
    return _digest(record)


def _parse(line: bytes, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise AuditError(f"line {number}: it isn't JSON") from error
    if not isinstance(record, dict):
        raise AuditError(f"line {number}: it isn't a record")
    return record


def _resume(fd: int) -> tuple[int, str]:
    """Return the next sequence number and the last hash; cut off an unfinished last line."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    whole, _, torn = tail.rpartition(b"\n")
    if torn:
        os.ftruncate(fd, size - len(torn))
    if not whole:
        return 0, _START
    last = _parse(whole.rpartition(b"\n")[2], number=-1)
    return int(last["sequence"]) + 1, str(last["hash"])
