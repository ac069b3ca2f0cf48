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
        remove(folder)
    return len(dead)


def remove(folder: Path) -> None:
    """Remove a folder, however deep it is and whatever rights its parts have.

    It goes down and up step by step, so no path grows long and nothing here calls itself. What
    can't be removed is left for the next one that starts.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as held:
        names: list[str] = []

        def step(name: str, within: int | None = None) -> int:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, dir_fd=within)
            held.close()
            held.callback(os.close, fd)
            return fd

        inner: str | None = folder.name
        fd = step(str(folder.parent))
        while True:
            if inner is not None:
                os.chmod(inner, 0o700, dir_fd=fd)  # by path it could be too long
                fd = step(inner, fd)
                names.append(inner)
            else:
                fd = step("..", fd)
                os.rmdir(names.pop(), dir_fd=fd)
                if not names:
                    return
            inner = _clear(fd)


def _clear(fd: int) -> str | None:
    """Remove what isn't a folder; return the name of a folder if one is found."""
    with os.scandir(fd) as parts:
        for part in parts:
            if part.is_dir(follow_symlinks=False):
                return part.name
            os.unlink(part.name, dir_fd=fd)
    return None


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
