"""How a program ended, by what the kernel and the runner say.

Invariant: nothing that a program prints or returns claims a limit, and what was done to a sandbox
from outside is no result of its program.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_USED = 0.8  # of a limit on time: the kernel enforces it by ticks, which are off by some per cent

_STOPPED: Mapping[str, tuple[str, str]] = {
    "wall": ("timeout", "wall limit"),
    "output": ("output_limit", "output limit"),
    "memory": ("oom", "memory limit"),
    "processes": ("killed", "process limit"),
    "cancelled": ("killed", "cancelled"),  # or its sandbox was closed
}


@dataclass(frozen=True)
class Evidence:
    """What is known beside the runner's report.

    Attributes:
      stopped: why the supervisor ended the program, a key of `_STOPPED`; "" if it didn't.
      group_ran_out: the sandbox's control group hit its limit, and the kernel killed something.
      machine_ran_out: the kernel killed something in it, though it hadn't hit its limit; where
        there is no group, something somewhere.
      died: how a sandbox that is gone ended, in words.
      can_die_from_inside: there are no walls that keep a program from killing its runner.
      memory_bytes: the limit on the largest process's peak; None where the kernel counts.
      cpu_seconds: the limit of each process.
    """

    stopped: str
    group_ran_out: bool
    machine_ran_out: bool
    died: str
    can_die_from_inside: bool
    memory_bytes: int | None
    cpu_seconds: int


def judge(report: Mapping[str, Any], known: Evidence) -> tuple[str, str]:
    """Return a status, and the cause in words.

    Args:
      report: of the runner; empty if the sandbox died before.
    """
    if known.stopped:
        return _STOPPED[known.stopped]
    if known.group_ran_out:
        return "oom", "memory limit"
    if not report:
        if known.can_die_from_inside:
            return "killed", "the sandbox was destroyed"
        return "infrastructure", f"the sandbox was killed from outside: {known.died}"
    if report.get("problem"):
        return "error", "it could not be started"
    if report["why"] == "disk":
        return "killed", "disk limit"
    return _judge_exit(int(report["exit"]), report, known)


def _judge_exit(code: int, report: Mapping[str, Any], known: Evidence) -> tuple[str, str]:
    used_its_time = report["own_cpu_seconds"] >= _USED * known.cpu_seconds
    if code in (-signal.SIGXCPU, -signal.SIGKILL) and used_its_time:
        return "timeout", "cpu limit"
    if code and known.memory_bytes is not None and report["peak_bytes"] > known.memory_bytes:
        return "oom", "memory limit"
    if code == -signal.SIGKILL and known.machine_ran_out:
        return "infrastructure", "the machine ran out of memory"
    if code < 0:
        return "error", f"signal {-code}"
    return "error" if code else "ok", f"exit {code}"
