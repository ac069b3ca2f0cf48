"""The one folder of a sandbox in which its programs may write, as the runner sees it.

Invariant: no link leads out of it, and only plain files with one name are read or written, so no
pipe, device or trick of names that a program has left there reaches the runner or the run.
"""

import contextlib
import errno
import os
import stat
from typing import Any

_BLOCK_BYTES = 1 << 20


class Workspace:
    """An open folder.

    Attributes:
      fd: of the folder.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def unlock(self) -> None:
        """Give the folder its rights back, where it is a program's own to take them."""
        with contextlib.suppress(PermissionError):
            os.fchmod(self.fd, 0o1777)

    def put(self, payload: int, offset: int, files: list[Any]) -> str:
        """Write files whose bytes are in a descriptor; return what went wrong, or "".

        Args:
          offset: where the first one's bytes are.
          files: of each its path, where its bytes are after `offset`, and how many.
        """
        for path, at, size in files:
            try:
                self._write(path, payload, offset + at, size)
            except OSError as error:
                return f"can't write {path!r}: {error.strerror}"
        return ""

    def open_to_read(self, path: str) -> int:
        """Return a descriptor of a file.

        Raises:
          OSError: if it can't be opened, or isn't plain.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        return self._open_plain(path, flags, make=False)

    def _write(self, path: str, payload: int, at: int, size: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = self._open_plain(path, flags, make=True)
        try:
            while size > 0:
                done = os.write(fd, os.pread(payload, min(size, _BLOCK_BYTES), at))
                at, size = at + done, size - done
        finally:
            os.close(fd)

    def _open_plain(self, path: str, flags: int, *, make: bool) -> int:
        folder, name = self._walk(path, make=make)
        try:
            fd = os.open(name, flags | os.O_CLOEXEC, 0o666, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            _require_plain(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

    def _walk(self, path: str, *, make: bool) -> tuple[int, str]:
        """Open the folder of a path, part by part, so that no link leads out of it."""
        *parts, name = path.split("/")
        folder = os.dup(self.fd)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        for part in parts:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, flags, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder, name


def _require_plain(fd: int) -> None:
    """Refuse what isn't a regular file with one name.

    Raises:
      OSError: saying what it is.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if found.st_nlink != 1:
        raise OSError(errno.EMLINK, "it has several names (hard links)")
