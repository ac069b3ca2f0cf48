"""What every sandbox can do, whatever stands behind it.

Invariant: when a call returns, raises or is cancelled, nothing that it started runs any more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, get_type_hints

from .limits import Limits
from .results import Result

Program = str | Sequence[str]
"""Python code, or a command as a list."""


class SandboxError(Exception):
    """A sandbox can't do what was asked: the fault of the machine or of its configuration.

    In an environment it makes the episode a failure that is tried again, never a reward of 0.
    """


class SandboxUnavailable(SandboxError):
    """There is no such sandbox on this machine; the text says what to install."""


class SandboxFileError(ValueError):
    """A file can't be read or written: it isn't there, isn't a plain file, or is too large."""


@dataclass(frozen=True)
class Guarantees:
    """What enforces what, on this machine. "none" means that nothing does.

    Attributes:
      is_boundary: code that wants out is kept in. Without it, limits stop accidents only.
      files: hides the machine's files.
      network: hides its network.
      syscalls: filters what programs ask of the kernel.
      memory: "cgroup" counts all of it; "polled" looks every 0.1 s.
      processes: "cgroup" and "rlimit" refuse one too many; "polled" kills all.
      disk: bounds all files together.
      cpu: bounds the CPU time of a process.
    """

    is_boundary: bool
    files: Literal["namespace", "interpreter", "remote", "none"]
    network: Literal["namespace", "interpreter", "remote", "none"]
    syscalls: Literal["seccomp", "interpreter", "remote", "none"]
    memory: Literal["cgroup", "polled", "interpreter", "remote", "none"]
    processes: Literal["cgroup", "rlimit", "polled", "interpreter", "remote", "none"]
    disk: Literal["tmpfs", "interpreter", "remote", "none"]
    cpu: Literal["rlimit", "interpreter", "remote", "none"]

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():  # it may come from a server
            value, known = self.__dict__[name], get_args(kind) or (True, False)
            if value not in known:
                choices = ", ".join(map(str, known))
                raise ValueError(f"{name} must be one of {choices}, got {value!r}")


class Sandbox(Protocol):
    """A place for programs of one episode. Its files stay from call to call."""

    @property
    def guarantees(self) -> Guarantees:
        """What this machine enforces."""
        ...

    async def exec(
        self,
        program: Program,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run a program until all of its processes are dead.

        Args:
          program: Python code, or a command. Calls of one sandbox wait for each other.
          stdin: what it reads.
          files: written first; paths are relative to the sandbox's folder, where it starts.
          limits: None takes those of the sandbox's configuration.
          deadline: on trio's clock; the earlier of this and `wall_seconds` counts.

        Returns:
          The result; also for programs that fail, and for faults of the machine, whose status
          is "infrastructure".

        Raises:
          ValueError: for a path that leads out of the folder, or a program of a wrong type.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the content of a file.

        Raises:
          SandboxFileError: if it isn't a plain file below the folder, or is larger.
          SandboxError: for a fault of the machine.
        """
        ...

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the folders of its path.

        Raises:
          SandboxFileError: if it can't be written.
          SandboxError: for a fault of the machine.
        """
        ...

    async def close(self) -> None:
        """End what runs and remove everything; again does nothing."""
        ...


class Watch(Protocol):
    """Is told of one call; of none that doesn't begin."""

    def began(self, exec_id: str) -> None:
        """The program is about to start."""
        ...

    def ended(self, result: Result) -> None:
        """It has ended, also for a caller that was cancelled and won't see the result."""
        ...


class Unwatched:
    """Takes no notice."""

    def began(self, exec_id: str) -> None:
        """Do nothing."""

    def ended(self, result: Result) -> None:
        """Do nothing."""


UNWATCHED = Unwatched()


@contextmanager
def told_at_end(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` when the block has ended, however; if both fail, raise both.

    An error in the place of a cancellation would keep that from its scope.
    """
    try:
        yield
    except BaseException as error:
        try:
            tell()
        except Exception as other:
            raise BaseExceptionGroup("a call, and who watches it", [error, other]) from None
        raise
    tell()


class WatchedSandbox(Sandbox, Protocol):
    """What a backend gives: a sandbox whose calls somebody may watch."""

    async def exec(
        self,
        program: Program,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
        watch: Watch = UNWATCHED,
    ) -> Result:
        """Run a program as `Sandbox.exec` does; `watch` is told of it."""
        ...
