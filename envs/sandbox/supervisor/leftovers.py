"""What a killed supervisor leaves behind, and how the next one finds it.

A supervisor holds a lock on a file in a folder of its own for as long as it lives; the kernel
lets go of the lock when it dies, however that happens. Control groups are named like the
folder. So a folder whose lock can be taken is a leftover.

Invariant: nothing of a living supervisor is touched.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from . import cgroups

_LOCK = "lock"


class StateFolderError(OSError):
    """The folder for leftovers isn't ours alone."""


def state_root() -> Path:
    """Return the folder that holds the folders of this user's supervisors.

    Raises:
      StateFolderError: if somebody else made it or may write to it.
    """
    root = Path(tempfile.gettempdir()) / f"headrace-sandboxes-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StateFolderError(f"{root} must be a folder that only this user may write to")
    return root


def claim(root: Path, run: str) -> tuple[Path, int]:
    """Make and lock a folder for this process; return it and the lock's descriptor."""
    folder = root / f"headrace-{run}-{secrets.token_hex(6)}"
    folder.mkdir(mode=0o700)
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def reap(root: Path, layout: cgroups.Layout) -> int:
    """Remove what dead supervisors left: groups, what runs in them, folders; return how many."""
    found = [folder for folder in root.glob("headrace-*") if folder.is_dir()]
    dead = [folder for folder in found if _is_dead(folder)]
    for folder in dead:
        cgroups.remove_all(layout, folder.name + "-")
        shutil.rmtree(folder, ignore_errors=True)
    return len(dead)


def remove(folder: Path) -> None:
    """Remove a folder of this process."""
    shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False  # its owner is just making it, or removing it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True
