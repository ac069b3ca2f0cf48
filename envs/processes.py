"""Synchronous environments, in worker processes that can be killed.

Invariant: a fault of an environment costs its episode and its process, and nothing else. What
was opened is closed once, or killed with all of its children.
"""

from collections.abc import Callable, Sequence
from types import FunctionType, TracebackType
from typing import Any, Self

import trio

from .base import Env, EnvironmentBroken, RewardFailed, StepResult, Task
from .messages import Message
from .process_pool import ProcessLimits, ProcessPool, ProcessStatistics
from .process_wire import Answer, Call, pickled
from .threads import SyncEnv
from .worker_process import WorkerProcess, WorkerProcessError


class ProcessEnvs:
    """Makes asynchronous environments of synchronous ones; see `in_processes`."""

    def __init__(self, pool: ProcessPool):
        self._pool = pool

    def __call__(self) -> Env:
        """Make one environment; nothing runs before it is opened."""
        return _ProcessEnv(self._pool)

    def statistics(self) -> ProcessStatistics:
        """Return what the processes of all these environments do now."""
        return self._pool.statistics()


def in_processes(
    make: Callable[[], SyncEnv],
    *,
    processes: int = 16,
    recycle_after_episodes: int = 256,
    start_deadline_seconds: float = 30.0,
    close_deadline_seconds: float = 5.0,
    max_result_bytes: int = 1 << 24,
    name: str | None = None,
) -> ProcessEnvs:
    """Make a factory of environments whose calls run in worker processes.

    A process serves one environment from its opening to its closing, and then, still warm, the
    next one. It is killed, with its process group, when a call is cancelled (at its deadline or
    for another reason) and replaced after any error: a crash, an exception, an answer that is
    too large or can't be sent, a thread or child that the episode left behind. Each of these is
    the error of one episode. Processes end with the trio run, and when the run is killed.

    Environments of one process share its interpreter: its modules, its `random`, its files.
    A process is no sandbox: it may do all that the run may.

    Args:
      make: makes one environment, in the process. It is pickled, so a class or function of a
        module, or `functools.partial` of one; not of the script that is run.
      processes: so many environments are open at once, at least 1. Others wait to be opened,
        in order, which counts for their deadlines: `rollout.max_episodes` makes none wait.
      recycle_after_episodes: a process is replaced after so many, at least 1.
      start_deadline_seconds: an interpreter that takes longer to start and import is killed.
      close_deadline_seconds: closing isn't cancelled; one that takes longer is killed.
      max_result_bytes: of what a call returns, pickled.
      name: for messages; by default that of `make`.

    Raises:
      ValueError: for numbers out of range, and a `make` that no other process can import.
      WorkerProcessError: by the environments' calls, for the fault of one episode.
      EnvironmentBroken: by an opening, when three processes in a row don't start.

    Example:
      >>> in_processes(SyncEnv, processes=4).statistics()
      ProcessStatistics(processes=4, busy=0, idle=0, started_total=0)
    """
    limits = ProcessLimits(
        processes,
        recycle_after_episodes,
        start_deadline_seconds,
        close_deadline_seconds,
        max_result_bytes,
    )
    return ProcessEnvs(ProcessPool(name or name_of(make), pickled(make), limits))


def name_of(make: Callable[[], Any]) -> str:
    """Return what to call environments in messages."""
    return make.__name__ if isinstance(make, type | FunctionType) else type(make).__name__


class _ProcessEnv:
    """One environment; it has its process from its opening to its closing."""

    def __init__(self, pool: ProcessPool):
        self._pool = pool
        self._process: WorkerProcess | None = None
        self._failed = False

    async def __aenter__(self) -> Self:
        self._process = await self._pool.borrow(self)
        try:
            await self._call("open")
        except BaseException:
            await self._give_back(self._process, reusable=False)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        if process is None:
            return
        if process.is_busy:  # another task still waits for a call
            process.kill()
        reusable = False
        try:
            if not process.is_dead:
                reusable = await self._close(process) and not self._failed
        finally:
            await self._give_back(process, reusable=reusable)

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        messages: Sequence[Message] = await self._call("reset", task, seed)
        return messages

    async def step(self, message: Message) -> StepResult:
        result: StepResult = await self._call("step", message)
        return result

    async def _call(self, call: Call, *arguments: Any) -> Any:
        process = self._process
        if process is None:
            raise RuntimeError(f"{self._pool.name} isn't open; use it in an async with block")
        if process.is_dead or process.is_busy:
            raise RuntimeError(
                f"{self._pool.name} can't be used during a call or after one that was cancelled "
                "or ended its process; make another"
            )
        answer = await process.call(call, *arguments, max_bytes=self._pool.limits.max_result_bytes)
        return self._checked(call, answer).value

    async def _close(self, process: WorkerProcess) -> bool:
        """Close the environment in its process; return whether that can serve another."""
        limits = self._pool.limits
        seconds = limits.close_deadline_seconds
        try:
            with trio.fail_after(seconds) as scope:
                scope.shield = True
                answer = await process.call("close", max_bytes=limits.max_result_bytes)
        except trio.TooSlowError as error:
            raise WorkerProcessError(
                f"{self._pool.name}.close took more than {seconds:g} s; its process was killed"
            ) from error
        return self._checked("close", answer).reusable

    def _checked(self, call: Call, answer: Answer) -> Answer:
        if answer.kind == "ok":
            return answer
        if answer.kind == "unscored":
            raise RewardFailed(answer.value)
        self._failed = True
        if answer.kind == "broken":
            raise EnvironmentBroken(answer.value)
        failure = WorkerProcessError(f"{self._pool.name}.{call} raised {answer.value}")
        failure.add_note(f"in its process:\n{answer.details}")
        raise failure

    async def _give_back(self, process: WorkerProcess, *, reusable: bool) -> None:
        self._process = None
        await self._pool.give_back(self, process, reusable=reusable)
