"""Memory and process limits of the kernel's control groups, where this process may set them.

Layouts differ: version 1 has a tree for each controller, version 2 one tree for all; often
neither may be written to. `find` says what there is, and what isn't there isn't claimed.

Invariant: a group's name starts with its owner's, so that a later run finds what a killed one
left (`remove_all`).
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_REMOVAL_SECONDS = 2.0


@dataclass(frozen=True)
class Layout:
    """Where groups can be made.

    Attributes:
      memory: the folder for groups that limit memory; None where there is none.
      pids: the same for the number of processes.
      version: 1 or 2.
    """

    memory: Path | None
    pids: Path | None
    version: int


def find(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Layout:
    """Find where this process may make groups, by making one and removing it."""
    paths = _own_paths(own)
    if "" in paths and (root / "cgroup.controllers").exists():
        return _find_unified(root / paths[""].lstrip("/"))
    memory = _writable(root / "memory" / paths.get("memory", "").lstrip("/"), _MEMORY_V1)
    pids = _writable(root / "pids" / paths.get("pids", "").lstrip("/"), "pids.max")
    return Layout(memory, pids, 1)


_PEAK_V1 = "memory.max_usage_in_bytes"
_BATCH_BYTES = 1 << 20  # by which a peak may stay below the limit: the kernel counts in batches
_MEMORY_V1, _SWAP_V1 = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"


def _own_paths(own: Path) -> dict[str, str]:
    """Return the path of this process's group by controller; "" is version 2's."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    triples = [line.split(":", 2) for line in lines]
    return {name: path for _, names, path in triples for name in names.split(",")}


def _find_unified(own: Path) -> Layout:
    # A group with processes can't hand controllers to its children, so a sibling is next.
    for parent in (own, own.parent):
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+memory +pids")
        if _writable(parent, "memory.max") and _writable(parent, "pids.max"):
            return Layout(parent, parent, 2)
    return Layout(None, None, 2)


def _writable(parent: Path, needed: str) -> Path | None:
    probe = parent / f"headrace-probe-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return None
    usable = os.access(probe / needed, os.W_OK) and os.access(probe / "cgroup.procs", os.W_OK)
    with contextlib.suppress(OSError):
        probe.rmdir()
    return parent if usable else None


class Group:
    """The limits of one sandbox. Without a layout that can hold it, it does nothing."""

    def __init__(self, layout: Layout, name: str) -> None:
        """Raises:
        OSError: if the groups can't be made after all.
        """
        self._layout = layout
        parents = dict.fromkeys(p for p in (layout.memory, layout.pids) if p is not None)
        self._folders = [parent / name for parent in parents]
        self._memory = layout.memory / name if layout.memory else None
        self._memory_bytes, self._counts_before = 0, (0, 0)
        self._pids = layout.pids / name if layout.pids else None
        for folder in self._folders:
            folder.mkdir()

    def enter(self) -> None:
        """Move the calling process in; between fork and exec."""
        for folder in self._folders:
            (folder / "cgroup.procs").write_text("0")

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Set both limits for what runs next.

        Raises:
          OSError: if the kernel refuses, for example below what is in use.
        """
        if self._pids is not None:
            (self._pids / "pids.max").write_text(str(processes))
        if self._memory is None:
            return
        self._memory_bytes, self._counts_before = memory_bytes, self._oom_counts()
        if self._layout.version == 2:
            (self._memory / "memory.max").write_text(str(memory_bytes))
            self._write_if_there("memory.swap.max", "0")
        else:
            self._write_if_there(_PEAK_V1, "0")
            self._write_if_there(_SWAP_V1, "-1")  # never below the limit that is set next
            (self._memory / _MEMORY_V1).write_text(str(memory_bytes))
            self._write_if_there(_SWAP_V1, str(memory_bytes))

    def ran_out(self) -> bool:
        """Whether the kernel has killed somebody in it, since `limit`, because of its limit."""
        return self._was_killed_in() and self._was_hit()

    def machine_ran_out(self) -> bool:
        """Whether it has done so without that: it was the machine that had no more memory."""
        return self._was_killed_in() and not self._was_hit()

    def _was_killed_in(self) -> bool:
        return self._oom_counts()[0] > self._counts_before[0]

    def _was_hit(self) -> bool:
        if self._layout.version == 2:
            return self._oom_counts()[1] > self._counts_before[1]
        peak_bytes = int(self._read(_PEAK_V1) or 0)  # there is no count of hits to rely on
        return peak_bytes > self._memory_bytes - _BATCH_BYTES

    def _oom_counts(self) -> tuple[int, int]:
        events = self._read("memory.events" if self._layout.version == 2 else "memory.oom_control")
        return _count(events, "oom_kill"), _count(events, "oom")

    def remove(self) -> None:
        """Kill what is left inside and remove the groups."""
        for folder in self._folders:
            _remove(folder)

    def _read(self, name: str) -> str:
        try:
            return (self._memory / name).read_text() if self._memory else ""
        except OSError:
            return ""

    def _write_if_there(self, name: str, value: str) -> None:
        if self._memory is not None and (self._memory / name).exists():
            (self._memory / name).write_text(value)


def oom_kills_of_the_machine(counters: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the kernel has killed for memory, in all groups and in none."""
    with contextlib.suppress(OSError):
        return _count(counters.read_text(), "oom_kill")
    return 0


def _count(text: str, wanted: str) -> int:
    pairs = [line.split() for line in text.splitlines()]
    return sum(int(value) for name, value in pairs if name == wanted)


def remove_all(layout: Layout, prefix: str) -> int:
    """Remove the groups whose names start so, with what runs in them; return how many."""
    parents = {parent for parent in (layout.memory, layout.pids) if parent is not None}
    folders = [folder for parent in parents for folder in parent.glob(f"{prefix}*")]
    for folder in folders:
        _remove(folder)
    return len(folders)


def _remove(folder: Path) -> None:
    until = time.monotonic() + _REMOVAL_SECONDS
    while time.monotonic() < until:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # busy: a process is inside, or is just ending
            _kill_members(folder)
            time.sleep(0.001)
        else:
            return


def _kill_members(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)
