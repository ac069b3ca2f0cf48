"""The audit log: two lines for each program that a run let run, chained by hashes.

The first is written before the program starts, the second when it has ended; of a call whose
process was killed there is only the first. A process's first call with a configuration has a
line of the kind "policy" before both, which says what that is. Each line holds the hash of the
line before it, so a line can't be changed, removed or put in without changing every later one.
What the chain can't show is that the last lines were cut off, or that all was written anew: for
that, keep `AuditReport.head` elsewhere.

Invariant: all processes and threads of a run append to one chain, one at a time; no code, input
or output is in it, only hashes, numbers and sizes.
"""

import errno
import fcntl
import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .names import safe_name

FILE_NAME = "sandbox.jsonl"
_START = "0" * 64
_POLICY = "policy"
_BLOCK_BYTES = 1 << 12


class AuditError(ValueError):
    """The log isn't what was written; the text says where."""


@dataclass(frozen=True)
class AuditReport:
    """What a log's check has found.

    Attributes:
      calls: how many programs were started.
      by_status: how many of them ended how.
      unended: how many have no second line: they run, or who waited for them was killed.
      head: the hash of the last line.
      is_torn: the last line is unfinished, as after a kill.
    """

    calls: int
    by_status: Mapping[str, int]
    unended: int
    head: str
    is_torn: bool


class AuditLog:
    """A log, opened by its first record. It goes on where the file ends, whoever wrote that."""

    def __init__(self, path: Path, run: str) -> None:
        """Args:
        path: of the file; made with the first record.
        run: the run's name, in each record.
        """
        self.path = path
        self.run = safe_name(run)
        self._fd: int | None = None
        self._owner = 0  # the process that opened it: locks don't keep a fork of it out
        self._turn = threading.Lock()
        self._size, self._sequence, self._head = 0, 0, _START
        self._policies = set[str]()

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
        """Append a record; waits while another process or thread appends.

        Raises:
          AuditError: if the file's last record isn't one.
          OSError: if it can't be written.
        """
        with self._turn:
            fd = self._open()
            fcntl.flock(fd, fcntl.LOCK_EX)  # let go by the kernel if its holder is killed
            try:
                self._append(fd, fields)
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)

    def record_policy(self, policy: str, config: Mapping[str, Any]) -> None:
        """Append a configuration and its digest, if this process hasn't; raises as `record`."""
        if policy not in self._policies:
            self.record({"kind": _POLICY, "policy": policy, "config": config})
            self._policies.add(policy)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None or self._owner != os.getpid():
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd, self._owner = os.open(self.path, flags, 0o600), os.getpid()
        return self._fd

    def _append(self, fd: int, fields: Mapping[str, Any]) -> None:
        if os.fstat(fd).st_size != self._size:  # others have appended meanwhile
            self._sequence, self._head = _resume(fd)
        record = {"sequence": self._sequence, "run": self.run, **fields, "previous": self._head}
        head = digest(record)
        line = json.dumps({**record, "hash": head}, separators=(",", ":")).encode() + b"\n"
        if os.write(fd, line) != len(line):
            raise OSError(errno.ENOSPC, "the audit log is cut; there may be no space", self.path)
        self._sequence, self._head = self._sequence + 1, head
        self._size = os.fstat(fd).st_size


def verify_log(path: Path) -> AuditReport:
    """Check every record of a log.

    Raises:
      AuditError: at the first record that isn't what was written.
      OSError: if the file can't be read.
    """
    previous, by_status, calls, is_torn = _START, Counter[str](), 0, False
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                is_torn = True
                break
            record = _parse(line, number)
            claimed = record.pop("hash", None)
            if record.get("previous") != previous or record.get("sequence") != number - 1:
                raise AuditError(f"line {number}: it doesn't follow the line before it")
            if claimed != digest(record):
                raise AuditError(f"line {number}: its content doesn't match its hash")
            previous = str(claimed)
            if "status" in record:
                by_status[str(record["status"])] += 1
            elif record.get("kind") != _POLICY:
                calls += 1
    return AuditReport(calls, by_status, calls - by_status.total(), previous, is_torn)


def audit_run(run_folder: Path) -> str:
    """Check the log of a run; return what to tell the user. The command `headrace audit`.

    Raises:
      AuditError: if there is no log, or it isn't what was written.
    """
    path = run_folder / FILE_NAME
    if not path.is_file():
        raise AuditError(f"there is no {path}; a run that used no sandbox writes none")
    report = verify_log(path)
    counts = [f"{count} {status}" for status, count in sorted(report.by_status.items())]
    if report.unended:
        counts.append(f"{report.unended} without an end, as after a kill")
    torn = "; the last line is unfinished, as after a kill" if report.is_torn else ""
    told = ", ".join(counts) or "none"
    return f"{path}: {report.calls} calls ({told}), unchanged{torn}; head {report.head}"


_OPEN: list[AuditLog] = []  # of this process, the innermost last


@contextmanager
def audit_to(log: AuditLog) -> Iterator[None]:
    """Record the calls of all sandboxes that this process opens in the block, on any thread.

    Processes of `in_processes` that it starts meanwhile write to the same file.
    """
    _OPEN.append(log)
    try:
        yield
    finally:
        _OPEN.remove(log)


def current_audit() -> AuditLog | None:
    """Return the log of this process; None where there is none."""
    return _OPEN[-1] if _OPEN else None


def digest(value: Any) -> str:
    """Return a hash of a value of JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


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
    end = _line_start(fd, size)
    if end < size:
        os.ftruncate(fd, end)
    if end == 0:
        return 0, _START
    start = _line_start(fd, end - 1)
    try:
        last = json.loads(os.pread(fd, end - start, start))
        return int(last["sequence"]) + 1, str(last["hash"])
    except (ValueError, TypeError, KeyError) as error:
        raise AuditError(
            "the last line isn't a record; look who wrote it, and move the file away to go on"
        ) from error


def _line_start(fd: int, end: int) -> int:
    """Return where the line begins that goes on to `end`, however long it is."""
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        newline = os.pread(fd, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0
