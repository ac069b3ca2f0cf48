"""Which sandbox programs run in."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from .limits import Limits

Backend = Literal["bwrap", "rlimit", "monty", "remote"]


@dataclass(frozen=True)
class SandboxConfig:
    """Which sandbox programs run in."""

    backend: Backend = "bwrap"
    """bwrap: Linux namespaces; monty: a Python interpreter of its own; remote: another machine;
    rlimit: limits only, which are no security boundary."""
    allow_unsafe: bool = False
    """Accept a backend that can't keep hostile code in."""
    limits: Limits = field(default_factory=Limits)
    """What a call may use that doesn't say it itself; `disk_bytes` holds for all calls."""
    warm: int = 2
    """So many sandboxes are started ahead of need."""
    max_open: int = 64
    """So many are open at once; more wait."""
    tools: Literal["python", "system"] = "python"
    """python: programs see the interpreter alone; system: all of /usr and /bin as well."""
    packages: tuple[str, ...] = ()
    """Folders of modules to import from; visible inside, read-only."""
    command: tuple[str, ...] = ()
    """For remote: the command that connects to a server, such as `ssh HOST python -m
    headrace.envs.sandbox.serve`."""

    def __post_init__(self) -> None:
        if self.backend not in get_args(Backend):
            known = ", ".join(get_args(Backend))
            raise ValueError(f"backend must be one of {known}, got {self.backend!r}")
        for name, value, lowest in (("warm", self.warm, 0), ("max_open", self.max_open, 1)):
            if value < lowest:
                raise ValueError(f"{name} must be {lowest} or more, got {value}")
        if (self.backend == "remote") is not bool(self.command):
            raise ValueError(
                f"command and backend='remote' belong together, got backend={self.backend!r} "
                f"and command={self.command!r}"
            )
        if self.backend == "rlimit" and not self.allow_unsafe:
            raise ValueError(
                "backend='rlimit' is no security boundary: programs can read and change "
                "everything that this user can; use bwrap, or set allow_unsafe=True for code "
                "that you trust"
            )
