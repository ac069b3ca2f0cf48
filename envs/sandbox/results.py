"""How a program in a sandbox ended."""

from dataclasses import dataclass, field
from typing import Literal

Status = Literal[
    "ok",  # it ended by itself with exit code 0
    "error",  # it ended by itself with another code, or by a signal of its own making
    "timeout",  # of wall time or of CPU time
    "oom",  # out of memory, by the kernel's count
    "output_limit",  # it printed more than it may
    "killed",  # cancelled, or out of processes or disk; without walls, it destroyed its sandbox
    "infrastructure",  # not the program's fault: never score it
]


@dataclass(frozen=True)
class Usage:
    """What a program used.

    Attributes:
      wall_seconds: from the call's start to its end.
      cpu_seconds: of all its processes.
      peak_memory_bytes: of its largest process; of all together where they are polled; of
        `monty`'s worker.
      processes_killed: that were still there when it ended.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    processes_killed: int = 0


@dataclass(frozen=True)
class Result:
    """How one call ended.

    An exit code of 0 proves nothing about the program's task: `os._exit(0)` gives one, too.
    Let it print values, and judge these outside of the sandbox.

    Attributes:
      status: what ended it.
      exit_code: of the program; below 0 for a signal; None if it didn't end by itself.
      stdout: what it printed, up to the limit.
      stderr: the same for errors.
      truncated: it printed more than is here.
      usage: what it used.
      exec_id: unique; the audit's record of the call has it, too.
      cause: what ended it, in words.
      workspace_lost: the sandbox's files are gone; its next call starts with none.
    """

    status: Status
    exit_code: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    usage: Usage = field(default_factory=Usage)
    exec_id: str = ""
    cause: str = ""
    workspace_lost: bool = False
