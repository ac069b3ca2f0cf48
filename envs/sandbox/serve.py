"""Serve sandboxes of this machine to a run elsewhere, through stdin and stdout.

    python -m headrace.envs.sandbox.serve --backend bwrap

A run reaches it with `SandboxConfig(backend="remote", command=("ssh", HOST, ...))`: any command
will do that carries bytes both ways, such as those of container services. The messages are
those of `supervisor/wire.py`; whoever speaks them can be a server.

Invariant: the server decides what its sandboxes can see and how many are warm; a run decides
what runs in them, within the limits that it sends.
"""

import argparse

from .config import SandboxConfig
from .hosts import settings_of
from .limits import Limits
from .supervisor.main import serve


def main() -> None:
    """Serve until the run goes away."""
    parser = argparse.ArgumentParser(prog="python -m headrace.envs.sandbox.serve")
    parser.add_argument("--backend", choices=("bwrap", "rlimit"), default="bwrap")
    parser.add_argument("--allow-unsafe", action="store_true")
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--tools", choices=("python", "system"), default="python")
    parser.add_argument("--disk-bytes", type=int, default=Limits().disk_bytes)
    given = parser.parse_args()
    config = SandboxConfig(
        backend=given.backend,
        allow_unsafe=given.allow_unsafe,
        warm=given.warm,
        tools=given.tools,
        limits=Limits(disk_bytes=given.disk_bytes),
    )
    serve((0, 1), settings_of(config, "served"))


if __name__ == "__main__":
    main()
