"""A synchronous function that is called in worker processes, which can be killed.

Invariant: a call that is cancelled, or that crashes its process, leaves nothing of it.
"""

from collections.abc import Callable
from typing import Any

import trio

from .base import EnvironmentBroken, RewardFailed
from .process_pool import ProcessLimits, ProcessPool, ProcessStatistics
from .process_wire import pickled
from .worker_process import WorkerProcessError

_RECYCLE_AFTER_CALLS = 4096
_RESULT_BYTES = 1 << 20


class CallTooSlow(Exception):
    """A call missed its deadline, and its process was killed."""


class ProcessFunction:
    """Calls a function in worker processes, each of which makes one call at a time.

    A process that has answered, also by an exception, makes the next call, warm: calls share its
    modules. Processes end with the trio run.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        processes: int,
        deadline_seconds: float,
        start_deadline_seconds: float,
    ):
        """Args:
        function: of a module; returns numbers, text, lists and dicts.
        name: for messages.
        processes: so many calls run at once; others wait, in order, without a deadline.
        deadline_seconds: of a call, from when its process has started.
        start_deadline_seconds: of starting a process, and importing the function's module.

        Raises:
          ValueError: for a function that no other process can import, and numbers out of range.
        """
        self._deadline_seconds = deadline_seconds
        limits = ProcessLimits(
            processes,
            _RECYCLE_AFTER_CALLS,
            start_deadline_seconds,
            deadline_seconds,
            _RESULT_BYTES,
        )
        self._pool = ProcessPool(name, pickled(function), limits)

    def statistics(self) -> ProcessStatistics:
        """Return what the processes do now."""
        return self._pool.statistics()

    async def __call__(self, *arguments: Any) -> Any:
        """Make a call; return its result.

        Raises:
          CallTooSlow: at the deadline.
          RewardFailed: if the function raises it.
          WorkerProcessError: if the function raises anything else, or its process ends.
          EnvironmentBroken: if three processes in a row don't start, or the function says so.
        """
        borrower = object()
        process = await self._pool.borrow(borrower)
        reusable = False
        try:
            with trio.move_on_after(self._deadline_seconds):
                answer = await process.call("run", *arguments, max_bytes=_RESULT_BYTES)
                reusable = answer.reusable
                if answer.kind == "broken":
                    raise EnvironmentBroken(answer.value)
                if answer.kind == "unscored":
                    raise RewardFailed(answer.value)
                if answer.kind == "error":
                    raise WorkerProcessError(str(answer.value))
                return answer.value
            raise CallTooSlow(f"took more than {self._deadline_seconds:g} s")
        finally:
            await self._pool.give_back(borrower, process, reusable=reusable)
