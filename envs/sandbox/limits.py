"""How much a program in a sandbox may use."""

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Limits:
    """Bounds on one call. What enforces each of them depends on the machine: see `Guarantees`.

    Example:
      >>> Limits(wall_seconds=2.0).wall_seconds
      2.0
    """

    wall_seconds: float = 10.0
    """From the call's start to its end, whatever the program does."""
    cpu_seconds: float = 10.0
    """Of each process; rounded up to whole seconds."""
    memory_bytes: int = 256 << 20
    """Of all processes together, the files that they write included where a cgroup counts."""
    processes: int = 32
    """At once, threads included."""
    output_bytes: int = 64 << 10
    """Of stdout and of stderr, each. More ends the program."""
    file_bytes: int = 16 << 20
    """Of each file."""
    disk_bytes: int = 32 << 20
    """Of all files together, each of them counted as one page of 4096 bytes at least."""
    open_files: int = 64
    """Descriptors of each process."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = self.__dict__[item.name]
            lowest = _LOWEST[item.name]
            if not lowest <= value < math.inf:
                raise ValueError(f"{item.name} must be {lowest} or more and finite, got {value}")


_LOWEST = {
    "wall_seconds": 0.01,
    "cpu_seconds": 0.01,
    "memory_bytes": 16 << 20,
    "processes": 1,
    "output_bytes": 0,
    "file_bytes": 0,
    "disk_bytes": 1 << 20,
    "open_files": 8,
}
