"""A sandbox whose calls are recorded.

Invariant: each program that starts leaves a line before it does and one when it has ended, also
if its caller is cancelled; of a call that never begins there is none.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .audit import AuditLog, digest
from .config import SandboxConfig
from .limits import Limits
from .protocol import Guarantees, Program, WatchedSandbox
from .results import Result


class AuditedSandbox:
    """Records calls in a log; see `Sandbox` for what its methods promise."""

    def __init__(
        self, inside: WatchedSandbox, log: AuditLog, *, config: SandboxConfig, episode: str
    ) -> None:
        self._inside = inside
        self._log = log
        self._config = config
        self._policy = asdict(config)
        self._common = {
            "episode": episode,
            "backend": config.backend,
            "policy": digest(self._policy),
        }

    @property
    def guarantees(self) -> Guarantees:
        """What this machine enforces."""
        return self._inside.guarantees

    async def exec(
        self,
        program: Program,
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes] | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Run a program and record how it ended."""
        bounds = asdict(limits or self._config.limits)
        what = {**self._common, **_digests(program, stdin, files or {}), "limits": bounds}
        return await self._inside.exec(
            program,
            stdin=stdin,
            files=files,
            limits=limits,
            deadline=deadline,
            watch=_Records(self._log, self._policy, what),
        )

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the content of a file."""
        return await self._inside.read(path, max_bytes=max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the folders of its path."""
        await self._inside.write(path, data)

    async def close(self) -> None:
        """End what runs and remove everything; again does nothing."""
        await self._inside.close()


class _Records:
    """Writes the two lines of one call; a `Watch`. Times are those of the epoch."""

    def __init__(self, log: AuditLog, policy: Mapping[str, Any], what: Mapping[str, Any]) -> None:
        self._log = log
        self._policy = policy
        self._what = what

    def began(self, exec_id: str) -> None:
        self._log.record_policy(self._what["policy"], self._policy)
        self._what = {**self._what, "exec_id": exec_id, "began_seconds": time.time()}
        self._log.record(self._what)

    def ended(self, result: Result) -> None:
        self._log.record(
            {
                **self._what,
                "ended_seconds": time.time(),
                "status": result.status,
                "cause": result.cause,
                "exit_code": result.exit_code,
                "stdout_bytes": len(result.stdout),
                "stderr_bytes": len(result.stderr),
                "usage": asdict(result.usage),
            }
        )


def _digests(program: Program, stdin: bytes, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return hashes of all that is run: a program may be in any of the three."""
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    return {
        "program": digest(program if isinstance(program, str) else list(program)),
        "stdin": hashlib.sha256(stdin).hexdigest(),
        "files": {"count": len(files), "digest": digest(hashes)},
    }
