"""What a process holds: counted before and after some episodes to find what they leave behind."""

import gc
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio

_FILES = Path("/proc/self/fd")
_CHILDREN = Path("/proc/self/task")


@dataclass(frozen=True)
class Holdings:
    """What this process has now, by kind: names and how often each is there."""

    kinds: Mapping[str, Counter[str]]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many there are of each kind."""
        return {kind: names.total() for kind, names in self.kinds.items()}

    def described(self, kind: str, before: "Holdings") -> str:
        """Name what is there of a kind and wasn't before."""
        new = self.kinds[kind] - before.kinds[kind]
        return ", ".join(f"{name} ({count} times)" for name, count in new.most_common(3))


def holdings() -> Holdings:
    """Count threads, tasks, open files and child processes; the last two on Linux only."""
    gc.collect()  # what nobody holds any more isn't a leak of the environment
    return Holdings(
        {"threads": _threads(), "tasks": _tasks(), "open files": _files(), "children": _children()}
    )


def _threads() -> Counter[str]:
    # Trio keeps idle threads for some seconds.
    names = [thread.name for thread in threading.enumerate()]
    return Counter(name for name in names if not name.startswith("Trio thread"))


def _tasks() -> Counter[str]:
    """Count the system tasks of this run, which nothing closes before its end."""
    root = trio.lowlevel.current_root_task()
    nurseries = [] if root is None else root.child_nurseries
    return Counter(task.name for nursery in nurseries for task in nursery.child_tasks)


def _files() -> Counter[str]:
    names: Counter[str] = Counter()
    for path in _FILES.iterdir() if _FILES.is_dir() else ():
        try:
            name = str(path.readlink())
        except OSError:  # the one of this very listing
            continue
        names[name.partition(":[")[0]] += 1  # sockets and pipes have numbers
    return names


def _children() -> Counter[str]:
    children: Counter[str] = Counter()
    for path in _CHILDREN.glob("*/children"):
        for child in path.read_text().split():
            children[_command(child)] += 1
    return children


def _command(process: str) -> str:
    try:
        text = Path(f"/proc/{process}/comm").read_text()
    except OSError:
        return process
    return text.strip()
