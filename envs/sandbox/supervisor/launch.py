"""The commands that start a sandbox: through bubblewrap, or with no walls at all.

Invariant: a command names each path of the machine that the sandbox can see; everything else
doesn't exist inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

WORK = "/work"
RUNNER_ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # equal programs print equal sets
_ROOT_BYTES = 1 << 20  # holds folders and links only, and is read-only from the start
_DEVICES = ("null", "zero", "full", "random", "urandom")
_RIGHTS_TO_GIVE_UP_RIGHTS = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


@dataclass(frozen=True)
class Walls:
    """What bubblewrap is told.

    Attributes:
      bwrap: its path.
      python: the interpreter's path, the same inside.
      visible: folders and files to show, read-only, at their own paths.
      hidden: folders in them to show empty, but for what is visible inside of these.
      links: pairs of a target and the link's path inside.
      disk_bytes: of the one writable folder.
      seccomp: a descriptor of the filter; None where the machine has none.
      is_root: launched by root, without a user namespace; the runner then changes its user.
    """

    bwrap: str
    python: str
    visible: Sequence[str]
    hidden: Sequence[str]
    links: Sequence[tuple[str, str]]
    disk_bytes: int
    seccomp: int | None
    is_root: bool


def inside_walls(walls: Walls, info: int, program: Sequence[str]) -> list[str]:
    """Return the command that runs a program inside.

    Args:
      info: a descriptor to which bubblewrap writes the pid of the first process inside.
    """
    command = [walls.bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    command += ["--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent"]
    command += [
        "--as-pid-1",
        "--new-session",
        "--clearenv",
        "--info-fd",
        str(info),
        "--cap-drop",
        "ALL",
    ]
    for name, value in RUNNER_ENVIRONMENT.items():
        command += ["--setenv", name, value]
    if walls.is_root:
        for right in _RIGHTS_TO_GIVE_UP_RIGHTS:
            command += ["--cap-add", right]
    else:
        command += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    if walls.seccomp is not None:
        command += ["--seccomp", str(walls.seccomp)]
    return [*command, *_files(walls), "--", *program]


def _files(walls: Walls) -> list[str]:
    command = ["--size", str(_ROOT_BYTES), "--tmpfs", "/"]
    inside = [path for path in walls.visible if _is_in_any(path, walls.hidden)]
    for path in walls.visible:
        if path not in inside:
            command += [*_folders_above(path), "--ro-bind", path, path]
    for folder in walls.hidden:
        command += ["--size", str(_ROOT_BYTES), "--perms", "0755", "--tmpfs", folder]
    for path in inside:
        command += ["--ro-bind", path, path]
    for folder in walls.hidden:
        if folder not in inside:
            command += ["--remount-ro", folder]
    for target, link in walls.links:
        command += [*_folders_above(link), "--symlink", target, link]
    command += ["--proc", "/proc", "--size", str(_ROOT_BYTES), "--tmpfs", "/dev"]
    for name in _DEVICES:
        command += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    command += ["--symlink", "/proc/self/fd", "/dev/fd", "--symlink", WORK, "/dev/shm"]
    command += ["--size", str(walls.disk_bytes), "--perms", "1777", "--tmpfs", WORK]
    command += ["--symlink", WORK, "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, "--chdir", WORK]


def _is_in_any(path: str, folders: Sequence[str]) -> bool:
    return any(PurePosixPath(path).is_relative_to(folder) for folder in folders)


def _folders_above(path: str) -> list[str]:
    """Make the folders that lead to a path; else bubblewrap makes them for their owner alone."""
    folders = [str(folder) for folder in PurePosixPath(path).parents][-2::-1]
    return [word for folder in folders for word in ("--perms", "0755", "--dir", folder)]


def runner_command(python: str, source: str, channel: int, settings: str) -> list[str]:
    """Return the command that boots an interpreter which waits for programs."""
    return [python, "-P", "-s", "-S", "-c", source, str(channel), settings]
