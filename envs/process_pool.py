"""Worker processes for one kind of environment or function: warm ones are used again.

Invariant: at most `processes` are lent at once, to those who asked first, and each serves one
environment at a time. When a trio run ends, it has no processes left.
"""

import math
import os
from dataclasses import dataclass

import trio

from .base import EnvironmentBroken
from .places import Places, places_of_run
from .sandbox.audit import current_audit
from .worker_process import WorkerProcess, WorkerProcessError, start_process

_STARTS = 3
_READY_BYTES = 1000


@dataclass(frozen=True)
class ProcessLimits:
    """What worker processes may take; see `in_processes`."""

    processes: int
    recycle_after_episodes: int
    start_deadline_seconds: float
    close_deadline_seconds: float
    max_result_bytes: int

    def __post_init__(self) -> None:
        for name in ("processes", "recycle_after_episodes", "max_result_bytes"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), ">= 1")
        for name in ("start_deadline_seconds", "close_deadline_seconds"):
            seconds = getattr(self, name)
            _check(0 < seconds < math.inf, name, seconds, "> 0 and finite")


@dataclass(frozen=True)
class ProcessStatistics:
    """What the worker processes of an environment do.

    Attributes:
      processes: so many may be lent, at most.
      busy: serve an environment.
      idle: wait for one, warm.
      started_total: started so far.
    """

    processes: int
    busy: int
    idle: int
    started_total: int


class ProcessPool:
    """Lends worker processes. One trio run at a time uses it."""

    def __init__(self, name: str, make: bytes, limits: ProcessLimits):
        """Args:
        name: of the environment, for messages.
        make: what makes an environment, pickled.
        limits: on the processes.
        """
        self.name = name
        self.limits = limits
        self._make = make
        self._idle: list[WorkerProcess] = []
        self._alive: set[WorkerProcess] = set()
        self._started_total = 0
        self._failed_starts = 0
        # For each trio run: a borrower that a run forgot never gives its place back.
        self._places: Places = Places(f"processes of {name}")
        self._starts: Places = Places(f"starts of {name}")

    def statistics(self) -> ProcessStatistics:
        """Return what the processes do now."""
        idle = len(self._idle)
        busy = len(self._alive) - idle
        return ProcessStatistics(self.limits.processes, busy, idle, self._started_total)

    async def borrow(self, borrower: object) -> WorkerProcess:
        """Wait for a place; return a process that nobody else uses.

        Raises:
          WorkerProcessError: if it can't be started.
          EnvironmentBroken: if that happened three times in a row.
        """
        places = places_of_run(self._places, self.limits.processes)
        await places.acquire_on_behalf_of(borrower)
        try:
            return self._take_warm() or await self._start()
        except BaseException:
            places.release_on_behalf_of(borrower)
            raise

    async def give_back(self, borrower: object, process: WorkerProcess, *, reusable: bool) -> None:
        """Take a process back: keep it warm, or end it and wait for that; not cancellable."""
        process.episodes += 1
        fresh = process.episodes < self.limits.recycle_after_episodes
        if reusable and fresh and process.is_well():
            process.output.end_episode()
            self._idle.append(process)
        else:
            await _end(process)
        places_of_run(self._places, self.limits.processes).release_on_behalf_of(borrower)

    def _take_warm(self) -> WorkerProcess | None:
        while self._idle:
            process = self._idle.pop()
            if process.is_well():
                return process
            process.kill()  # it ended, or spoke, while nobody used it
        return None

    async def _start(self) -> WorkerProcess:
        # Interpreters that start at once slow each other down, until none is there in time.
        async with places_of_run(self._starts, os.cpu_count() or 1):
            try:
                process = await start_process(self.name)
            except OSError as error:
                raise self._failed(f"the system refuses: {error}") from error
            self._started_total += 1
            self._alive.add(process)
            trio.lowlevel.spawn_system_task(self._keep, process)
            try:
                await self._begin(process)
            except BaseException:
                await _end(process)  # its place is free when it is gone, and not before
                raise
        self._failed_starts = 0
        return process

    async def _begin(self, process: WorkerProcess) -> None:
        seconds, most = self.limits.start_deadline_seconds, self.limits.max_result_bytes
        log = current_audit()
        audit = (str(log.path.absolute()), log.run) if log is not None else None
        try:
            with trio.fail_after(seconds):
                await process.call("start", self._make, most, audit, max_bytes=_READY_BYTES)
        except trio.TooSlowError as error:
            await process.wait_until_gone()
            words = process.output.last_words()
            raise self._failed(f"it took more than {seconds:g} s{words}") from error
        except WorkerProcessError as error:
            raise self._failed(str(error)) from error

    async def _keep(self, process: WorkerProcess) -> None:
        try:
            await process.keep()
        finally:
            self._alive.discard(process)
            if process in self._idle:
                self._idle.remove(process)

    def _failed(self, reason: str) -> WorkerProcessError | EnvironmentBroken:
        self._failed_starts += 1
        if self._failed_starts < _STARTS:
            return WorkerProcessError(f"{self.name} couldn't be started: {reason}")
        return EnvironmentBroken(
            f"{self.name} couldn't be started {self._failed_starts} times in a row; the last "
            f"time: {reason}\nmake sure that its module can be imported in a fresh interpreter; "
            "if it is only slow, raise start_deadline_seconds "
            f"(now {self.limits.start_deadline_seconds:g})"
        )


async def _end(process: WorkerProcess) -> None:
    process.kill()
    with trio.CancelScope(shield=True):
        await process.wait_until_gone()


def _check(allowed: bool, name: str, value: float, condition: str) -> None:
    if not allowed:
        raise ValueError(f"{name} must be {condition}, got {value}")
