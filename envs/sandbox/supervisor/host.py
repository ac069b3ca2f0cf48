"""What all sandboxes of a supervisor share: where things are, and what this machine enforces.

Invariant: `guarantees` claims what was tried or is given by the kernel's version, never what a
configuration wishes for.
"""

import json
import math
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cgroups, seccomp
from .launch import WORK, Walls

_RUNNER = ("workspace.py", "program.py", "runner.py")  # what it needs comes first
_FIRST_UID, _UIDS_OF_A_PROCESS = 1_000_000_000, 256  # pids end at 4 million, so below 2 ** 31
_NOBODY = 65534
_OWN_LIMITS_IN_NAMESPACE = (5, 14)  # since then a user namespace counts its own processes
_RUNNER_BYTES = 32 << 20  # what the interpreter that waits may need beside the program
_ADDRESSES_BYTES = 64 << 20  # an interpreter maps more than it uses
_LOCKED_BYTES = 64 << 10
_RLIMIT_SIGPENDING, _RLIMIT_MSGQUEUE = 11, 12  # without a name in `resource`
_SIGNALS = 1024  # queued ones and timers
_BYTES_OF_A_FILE = 4096  # so many files as pages fit on the disk


@dataclass(frozen=True)
class Host:
    """The machine as a supervisor finds it.

    Attributes:
      settings: what the run asked for: `backend`, `bwrap`, `python`, `visible`, `links`,
        `path`, `environment`, `warm`, `disk_bytes`, `run`.
      layout: where control groups can be made.
      name: of this supervisor, unique on the machine; what it leaves behind is called so.
      folder: of its own on the machine, removed at the end.
    """

    settings: Mapping[str, Any]
    layout: cgroups.Layout
    name: str
    folder: Path

    @property
    def has_walls(self) -> bool:
        """Whether sandboxes are more than limits."""
        return bool(self.settings["backend"] == "bwrap")

    @property
    def is_root(self) -> bool:
        """Whether sandboxes can be launched by root and be somebody else inside."""
        return os.geteuid() == 0 and _maps_user(_NOBODY)

    def walls(self, filter_fd: int | None) -> Walls:
        """Return what bubblewrap is told."""
        of = self.settings
        return Walls(
            bwrap=of["bwrap"],
            python=of["python"],
            visible=of["visible"],
            hidden=of["hidden"],
            links=[(target, link) for target, link in of["links"]],
            disk_bytes=of["disk_bytes"],
            seccomp=filter_fd,
            is_root=self.is_root,
        )

    def filter(self) -> bytes | None:
        """Return the program for system calls, where there is one for this machine."""
        try:
            return seccomp.build(os.uname().machine)
        except ValueError:
            return None

    @property
    def can_die_from_inside(self) -> bool:
        """Whether a program may have killed its runner; with walls the kernel doesn't let it."""
        return not self.has_walls

    def runner_settings(self, number: int) -> str:
        """Return the arguments of the runner of this supervisor's sandbox of that number."""
        work = WORK if self.has_walls else str(self.work_folder(number))
        return json.dumps(
            {
                "uid": self._uid(number),
                "work": work,
                "own_pids": self.has_walls,
                "own_disk": self.has_walls,
                "path": self.settings["path"],
                "environment": {**self.settings["environment"], "HOME": work, "TMPDIR": work},
            }
        )

    def runner_source(self) -> str:
        """Return the text of the runner: its modules as one, without what links them."""
        lines = [
            line
            for name in _RUNNER
            for line in Path(__file__).with_name(name).read_text().splitlines()
            if not line.startswith("from .")
        ]
        return "\n".join(lines)

    def work_folder(self, number: int) -> Path:
        """Return the folder of a sandbox without walls."""
        return self.folder / f"box-{number}"

    def _uid(self, number: int) -> int | None:
        if not (self.has_walls and self.is_root):
            return None
        slot = os.getpid() * _UIDS_OF_A_PROCESS + number % _UIDS_OF_A_PROCESS
        return _FIRST_UID + slot if _maps_user(_FIRST_UID + slot) else _NOBODY

    @property
    def _has_own_user(self) -> bool:
        """Whether the kernel counts a sandbox's processes apart from all others."""
        if not self.has_walls:
            return False
        if self.is_root:
            return self._uid(0) != _NOBODY
        return _kernel_version() >= _OWN_LIMITS_IN_NAMESPACE

    def guarantees(self) -> dict[str, Any]:
        """Say what enforces what."""
        namespaces = "namespace" if self.has_walls else "none"
        memory = "cgroup" if self.layout.memory else "polled"
        processes = "rlimit" if self._has_own_user else "polled"
        return {
            "is_boundary": self.has_walls,
            "files": namespaces,
            "network": namespaces,
            "syscalls": "seccomp" if self.has_walls and self.filter() else "none",
            "memory": memory,
            "processes": "cgroup" if self.layout.pids else processes,
            "disk": "tmpfs" if self.has_walls else "none",
            "cpu": "rlimit",
        }

    @property
    def is_polled(self) -> bool:
        """Whether this process must look after what the kernel doesn't limit."""
        found = self.guarantees()
        return "polled" in (found["memory"], found["processes"])

    def group_limits(self, limits: Mapping[str, Any]) -> dict[str, int]:
        """Return a call's limits for its control group, the runner's share included."""
        own_processes = 3  # bubblewrap, the runner, and one to spare
        return {
            "memory_bytes": limits["memory_bytes"] + _RUNNER_BYTES,
            "processes": limits["processes"] + own_processes,
        }

    def rlimits(self, limits: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """Return a call's limits for each of its processes: name, soft, hard."""
        cpu = self.cpu_seconds(limits)
        both = [
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, _LOCKED_BYTES),
            (_RLIMIT_SIGPENDING, _SIGNALS),
            (_RLIMIT_MSGQUEUE, 0),
        ]
        if self.layout.memory is None:  # a control group counts what is used, which is better
            both.append((resource.RLIMIT_AS, 2 * limits["memory_bytes"] + _ADDRESSES_BYTES))
        if self._has_own_user:
            both.append((resource.RLIMIT_NPROC, limits["processes"] + 1))  # and the runner
        return [(resource.RLIMIT_CPU, cpu, cpu + 1), *((n, v, v) for n, v in both)]

    def cpu_seconds(self, limits: Mapping[str, Any]) -> int:
        """Return after how much time of its processor a process is told to end."""
        return max(1, math.ceil(float(limits["cpu_seconds"])))

    def max_files(self, limits: Mapping[str, Any]) -> int:
        """Return how many files a call may have."""
        return max(64, int(limits["disk_bytes"]) // _BYTES_OF_A_FILE)


def _maps_user(uid: int) -> bool:
    """Whether this process could become this user."""
    rows = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return any(int(row[0]) <= uid < int(row[0]) + int(row[2]) for row in rows)


def _kernel_version() -> tuple[int, ...]:
    numbers = os.uname().release.split("-")[0].split(".")
    return tuple(int(part) for part in numbers[:2] if part.isdigit())
