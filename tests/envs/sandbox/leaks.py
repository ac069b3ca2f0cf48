"""What a leak of sandboxes would change on this machine."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace.envs.sandbox.supervisor import cgroups, leftovers
from headrace.envs.sandbox.supervisor.runner import descendants

_SHORT_SECONDS = 20.0


def wait_for(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + _SHORT_SECONDS
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def groups(run: str = "") -> set[Path]:
    """Control groups of sandboxes: of one run, or of all on this machine."""
    layout = cgroups.find()
    parents = {parent for parent in (layout.memory, layout.pids) if parent is not None}
    return {folder for parent in parents for folder in parent.glob(f"headrace-{run}*")}


def folders() -> set[Path]:
    return set(leftovers.state_root().iterdir())


def descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_of(pid: int) -> int:
    """Return how many bytes a process has for itself."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("RssAnon:") + 1]) << 10


def used_now(run: str) -> dict[str, object]:
    """What sandboxes of a run use while it goes on, theirs and their supervisor's."""
    children = {pid: name_of(pid) for pid in descendants(os.getpid())}
    lasting = [pid for pid, name in children.items() if name in ("supervisor", "monty")]
    return {
        "descriptors": descriptors_of(os.getpid()),
        "descriptors of supervisors": sorted(map(descriptors_of, lasting)),
        "processes": sorted(children.values()),
        "groups": len(groups(run)),
        "folders": len([path for path in folders() if run in path.name]),
        "files": len([path for root in folders() if run in root.name for path in root.rglob("*")]),
    }


def name_of(pid: int) -> str:
    """Say what a process is; zombies have no command."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    words = {b"supervisor.main": "supervisor", b"monty": "monty", b"bwrap": "bwrap"}
    return next((name for word, name in words.items() if word in command), str(command[:20]))
