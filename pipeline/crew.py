"""Tasks that do one job after the other: a task for each job takes trio thrice the time."""

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, TypeVarTuple

import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

Job = TypeVarTuple("Job")


class Crew(Generic[*Job]):
    """As many tasks of a nursery as ever had a job at once; they end with the nursery.

    An error in a job ends its task, as anywhere in trio, and so does a nursery that it left open.
    """

    def __init__(
        self, nursery: trio.Nursery, work: Callable[[*Job], Awaitable[None]], *, name: str
    ):
        """Args:
        work: does a job.
        name: of the tasks, for people.
        """
        self._nursery = nursery
        self._work = work
        self._name = name
        self._idle: list[Task] = []
        self._next: dict[Task, tuple[*Job]] = {}

    def start(self, *job: *Job) -> None:
        """Let a task do a job, soon."""
        if self._idle:
            task = self._idle.pop()
            task.context = copy_context()  # as a new task has; nothing of the job before is in it
            self._next[task] = job
            reschedule(task)
        else:
            self._nursery.start_soon(self._run, *job, name=self._name)

    async def _run(self, *job: *Job) -> None:
        task = current_task()

        def leave(_: object) -> Abort:
            self._idle.remove(task)
            return Abort.SUCCEEDED

        while True:
            await self._work(*job)
            if task.child_nurseries:
                return  # trio says what is wrong
            del job  # what was done need not be kept until the next one
            self._idle.append(task)
            await wait_task_rescheduled(leave)
            job = self._next.pop(task)
