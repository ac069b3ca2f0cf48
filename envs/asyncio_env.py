"""Environments and clients of asyncio, in worker processes with a loop of their own.

Trio and asyncio don't mix in one thread, and a run's loop is trio's. A process also keeps what the
protocol promises: a call that hangs or swallows its cancellation is killed, with all its tasks.

Invariant: one task of the loop opens, calls and closes an environment, as task groups and what is
built on them want it; the loop runs between calls, too, so that connections stay alive.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, Self

from .base import StepResult, Task, innermost
from .messages import Message
from .processes import ProcessEnvs, in_processes, name_of


class AsyncioEnv(Protocol):
    """An `Env` whose coroutines are asyncio's."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: Any) -> None: ...

    async def reset(self, task: Task, seed: int) -> Any:
        """Start the task; return the first messages. Equal arguments, equal messages."""
        ...

    async def step(self, message: Message) -> StepResult:
        """Answer the policy's message."""
        ...


def in_asyncio(
    make: Callable[[], AsyncioEnv],
    *,
    processes: int = 16,
    recycle_after_episodes: int = 256,
    start_deadline_seconds: float = 30.0,
    close_deadline_seconds: float = 5.0,
    name: str | None = None,
) -> ProcessEnvs:
    """Make a factory of environments whose coroutines run under asyncio, in worker processes.

    Everything else is as for `in_processes`, which describes the arguments: `make` must be a
    module's, and a call that is cancelled costs its process. An environment's tasks that are left
    when it is closed are cancelled.

    Example:
      >>> in_asyncio(AsyncioEnv, processes=4).statistics()
      ProcessStatistics(processes=4, busy=0, idle=0, started_total=0)
    """
    return in_processes(
        partial(LoopEnv, make),
        processes=processes,
        recycle_after_episodes=recycle_after_episodes,
        start_deadline_seconds=start_deadline_seconds,
        close_deadline_seconds=close_deadline_seconds,
        name=name or name_of(make),
    )


_Request = tuple[str, tuple[Any, ...], Future[Any]] | None


class LoopEnv:
    """A `SyncEnv` of an asyncio environment, whose loop runs in a thread from open to close."""

    def __init__(self, make: Callable[[], AsyncioEnv]):
        self._make = make
        self._opened: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._answer: Future[Any] | None = None  # of the call that runs
        self._told = False  # somebody has had what ended the loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._thread = threading.Thread(target=self._run, name="asyncio", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._opened.result()
        return self

    def __exit__(self, *error: object) -> None:
        self._send(None)
        self._thread.join()
        if not self._told:
            self._ended.result()

    def reset(self, task: Task, seed: int) -> Any:
        """Start the task; return the first messages."""
        return self._call("reset", task, seed)

    def step(self, message: Message) -> StepResult:
        """Answer the policy's message."""
        result: StepResult = self._call("step", message)
        return result

    def _call(self, name: str, *arguments: Any) -> Any:
        answer: Future[Any] = Future()
        self._answer = answer
        self._send((name, arguments, answer))
        return answer.result()

    def _send(self, request: _Request) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._requests.put_nowait, request)
        except RuntimeError:  # the loop has ended, and `_ended` says why
            self._fail(self._answer)

    # On the loop's thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._ended.set_exception(error)
            self._fail(self._opened)
            self._fail(self._answer)
        else:
            self._ended.set_result(None)

    def _fail(self, future: Future[Any] | None) -> None:
        """Let the one who waits for a result have what ended the loop."""
        error = self._ended.exception() or RuntimeError("the environment's loop has ended")
        if future is not None:
            with suppress(InvalidStateError):  # it has its result
                future.set_exception(innermost(error))
                self._told = True

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._make() as env:
            self._opened.set_result(None)
            while (request := await self._requests.get()) is not None:
                name, arguments, answer = request
                try:
                    answer.set_result(await getattr(env, name)(*arguments))
                except asyncio.CancelledError:
                    raise  # a task group has failed around this task; its error says more
                except BaseException as error:  # it becomes the call's, in the other thread
                    answer.set_exception(error)
