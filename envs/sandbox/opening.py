"""Open a sandbox by its configuration. All of a trio run that are alike share a supervisor.

Invariant: a supervisor starts with the first sandbox that needs it and has ended everything
before `trio.run` returns. One that dies is replaced when the next sandbox is opened.
"""

import importlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import trio
from trio.lowlevel import RunVar

from ..base import EPISODE
from .audit import AuditLog, current_audit
from .audited import AuditedSandbox
from .config import SandboxConfig
from .hosts import open_boxes
from .protocol import Sandbox, SandboxError, SandboxUnavailable, WatchedSandbox

DEFAULT = SandboxConfig()
_NEVER = (SandboxUnavailable, FileNotFoundError, PermissionError)  # no later try will do


class _Opener(Protocol):
    """What opens sandboxes of one configuration."""

    @property
    def is_lost(self) -> bool: ...

    def open(self) -> AbstractAsyncContextManager[WatchedSandbox]: ...


@asynccontextmanager
async def open_sandbox(
    config: SandboxConfig = DEFAULT, *, episode: str = "", audit: AuditLog | None = None
) -> AsyncIterator[Sandbox]:
    """Open a sandbox for a block.

    When the block ends, nothing that ran in it is left. Opening waits while `max_open` of this
    configuration are open.

    Args:
      episode: whose it is, for the audit log; by default the one that the task works for.
      audit: where calls are recorded; None takes that of `audit_to`, if there is one.

    Raises:
      SandboxUnavailable: if the backend isn't installed; the text says how to install it.
      SandboxError: if the machine can't start one.
    """
    log = audit or current_audit()
    opener = await _shared(config, "run" if log is None else log.run)
    async with opener.open() as sandbox:
        if log is None:
            yield sandbox
        else:
            yield AuditedSandbox(sandbox, log, config=config, episode=episode or EPISODE.get())


class _Shared:
    """The supervisor of one configuration in this trio run."""

    def __init__(self) -> None:
        self._ready = trio.Event()
        self._opener: _Opener | None = None
        self._problem: SandboxError | OSError | None = None

    @property
    def is_over(self) -> bool:
        """Whether another one is needed."""
        return self._problem is not None or (self._opener is not None and self._opener.is_lost)

    async def host(self, config: SandboxConfig, run: str) -> None:
        """Hold it open until the trio run ends; a system task."""
        try:
            async with _backend(config, run) as self._opener:
                self._ready.set()
                await trio.sleep_forever()
        except (SandboxError, OSError) as error:
            self._problem = error
        finally:
            self._ready.set()

    async def opener(self) -> _Opener:
        """Wait until it has started.

        Raises:
          SandboxUnavailable: if it never will on this machine.
          SandboxError: if it can't now: the next to ask has another try.
        """
        await self._ready.wait()
        if self._opener is None:
            for_good = isinstance(self._problem, _NEVER)
            raise (SandboxUnavailable if for_good else SandboxError)(
                str(self._problem or "the run is over")
            ) from self._problem
        return self._opener


_SHARED: RunVar[dict[SandboxConfig, _Shared]] = RunVar("sandbox supervisors")


async def _shared(config: SandboxConfig, run: str) -> _Opener:
    try:
        table = _SHARED.get()
    except LookupError:
        table = dict[SandboxConfig, _Shared]()
        _SHARED.set(table)
    if config not in table or table[config].is_over:
        table[config] = _Shared()
        trio.lowlevel.spawn_system_task(table[config].host, config, run)
    return await table[config].opener()


def _backend(config: SandboxConfig, run: str) -> AbstractAsyncContextManager[_Opener]:
    if config.backend != "monty":
        return open_boxes(config, run=run)
    try:
        monty = importlib.import_module(".monty", __package__)  # an optional extra
    except ImportError as error:
        raise SandboxUnavailable(
            f"backend='monty' can't be used ({error}); install it with "
            "`pip install pydantic-monty`"
        ) from error
    opened: AbstractAsyncContextManager[_Opener] = monty.open_workers(config)
    return opened
