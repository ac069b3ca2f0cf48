"""Synchronous environments, in worker threads.

Invariant: calls of one environment never overlap, whatever is cancelled when, and what was
opened is closed once. A call that was abandoned is the last one: when it ends, its thread closes
the environment.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, TracebackType
from typing import Any, Protocol, Self, TypeVar

import trio

from .base import Env, StepResult, Task
from .messages import Message
from .worker_threads import ThreadCall, ThreadStatistics, WorkerThreads

T = TypeVar("T")


class SyncEnv(Protocol):
    """An `Env` without `async`: it may block, but each of its calls blocks a thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        """Start the task; return the first messages. Equal arguments, equal messages."""
        ...

    def step(self, message: Message) -> StepResult:
        """Answer the policy's message."""
        ...


class ThreadedEnvs:
    """Makes asynchronous environments of synchronous ones; see `in_threads`."""

    def __init__(
        self, make: Callable[[], SyncEnv], threads: WorkerThreads, *, grace_seconds: float
    ):
        self._make = make
        self._threads = threads
        self._grace_seconds = grace_seconds

    def __call__(self) -> Env:
        """Make one environment; nothing runs before it is opened."""
        return _ThreadedEnv(self._make, self._threads, self._grace_seconds)

    def statistics(self) -> ThreadStatistics:
        """Return what the threads of all these environments do now; callable from anywhere."""
        return self._threads.statistics()


def in_threads(
    make: Callable[[], SyncEnv],
    *,
    threads: int = 64,
    max_abandoned: int = 16,
    grace_seconds: float = 5.0,
    name: str | None = None,
) -> ThreadedEnvs:
    """Make a factory of environments whose calls run in worker threads.

    A call that is cancelled, at its deadline or for another reason, is abandoned: nothing can
    stop a thread. The environment gets no further call, and the thread closes it when the call
    ends. Another thread takes the abandoned one's place, up to `max_abandoned` of them.

    Closing waits for no place. After a call that was cancelled before its deadline, closing
    waits for it, until that deadline. A thread is never waited for when the process ends:
    what it holds at that moment outside of the process stays.

    Args:
      make: makes one environment, in the thread that opens it.
      threads: so many calls run at once, at least 1; others wait, which counts for their
        deadlines. Calls of one environment may come from different threads.
      max_abandoned: more calls that still run after their deadline end the run.
      grace_seconds: an opening that is cancelled is waited for so long, to close what it opens.
      name: for threads and messages; by default that of `make`.

    Raises:
      ValueError: for numbers out of range.
      TooManyHungThreads: by the environments' calls.

    Example:
      >>> class Echo:
      ...     def __enter__(self):
      ...         return self
      ...     def __exit__(self, *error):
      ...         pass
      ...     def reset(self, task, seed):
      ...         return [Message("user", task.id)]
      ...     def step(self, message):
      ...         return StepResult(reward=1.0, terminated=True)
      >>> make = in_threads(Echo, threads=4)
      >>> async def first_message():
      ...     async with make() as env:
      ...         return (await env.reset(Task("hello"), 0))[0].content
      >>> trio.run(first_message)
      'hello'
      >>> make.statistics()
      ThreadStatistics(threads=4, busy=0, abandoned=0, abandoned_total=0)
    """
    hint = (
        "give what blocks a timeout of its own, shorter than the rollout's deadlines; a higher "
        f"max_abandoned of in_threads (now {max_abandoned}) only buys time"
    )
    pool = WorkerThreads(
        name or _name(make), threads=threads, max_abandoned=max_abandoned, hint=hint
    )
    return ThreadedEnvs(make, pool, grace_seconds=grace_seconds)


def _name(make: Callable[[], SyncEnv]) -> str:
    return make.__name__ if isinstance(make, type | FunctionType) else type(make).__name__


class _ThreadedEnv:
    """One environment. Only the thread of its latest call touches what is inside."""

    def __init__(self, make: Callable[[], SyncEnv], threads: WorkerThreads, grace_seconds: float):
        self._make = make
        self._threads = threads
        self._grace_seconds = grace_seconds
        self._manager: SyncEnv | None = None  # from its opening to its closing
        self._env: SyncEnv | None = None  # what opening it returned
        self._call: ThreadCall[Any] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._run("open", self._open)
        except BaseException:
            # Nobody closes what failed to open; but it may have opened in its thread.
            with trio.move_on_after(self._grace_seconds, shield=True):
                await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call = self._call
        if call is not None:
            call.give_up()  # if another task still waits for it
        if call is not None and call.abandoned:
            with trio.move_on_after(max(0.0, call.overdue_in_seconds)):
                await call.ended.wait()
        elif self._manager is not None:
            close = partial(self._close, kind, error, trace)
            self._call = ThreadCall(self._threads, "close", close, queue=False)
            await self._call.result()

    async def reset(self, task: Task, seed: int) -> Sequence[Message]:
        return await self._run("reset", partial(self._opened.reset, task, seed))

    async def step(self, message: Message) -> StepResult:
        return await self._run("step", partial(self._opened.step, message))

    @property
    def _opened(self) -> SyncEnv:
        if self._env is None:
            raise RuntimeError(f"{self._threads.name} isn't open; use it in an async with block")
        return self._env

    async def _run(self, name: str, function: Callable[[], T]) -> T:
        if self._call is not None and self._call.was_abandoned:
            raise RuntimeError(
                f"{self._threads.name} can't be used after a call that was cancelled; make another"
            )
        call = ThreadCall(self._threads, name, function, cleanup=self._close)
        self._call = call
        return await call.result()

    # In a worker thread.

    def _open(self) -> None:
        manager = self._make()
        self._env = manager.__enter__()
        self._manager = manager

    def _close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.__exit__(kind, error, trace)
