"""Tasks that do one job after the other: for trio that is less work than a task for each job."""

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVarTuple

import trio
from outcome import Value
from trio.lowlevel import (
    Abort,
    Task,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

Job = TypeVarTuple("Job")


class Crew(Generic[*Job]):
    """As many tasks of a nursery as ever had a job at once; they end with the nursery.

    Each job sees the context variables of who made the crew, and nothing of other jobs.
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
        self._context = copy_context()
        self._idle: dict[Task, None] = {}

    @enable_ki_protection  # a Ctrl-C between two lines would leave a task that nobody wakes
    def start(self, *job: *Job) -> None:
        """Let a task do a job, soon."""
        if self._idle:
            reschedule(self._idle.popitem()[0], Value(job))
        else:
            begin = partial(self._nursery.start_soon, self._run, *job, name=self._name)
            self._context.run(begin)

    async def _run(self, *job: *Job) -> None:
        task = current_task()
        while True:
            await self._work(*job)
            if task.child_nurseries:
                return  # trio says what is wrong
            del job  # what was done need not be kept until the next one
            task.context = self._context.copy()
            job = await self._next_job(task)

    @enable_ki_protection
    async def _next_job(self, task: Task) -> tuple[*Job]:
        def leave(_: object) -> Abort:
            del self._idle[task]
            return Abort.SUCCEEDED

        self._idle[task] = None
        job: tuple[*Job] = await wait_task_rescheduled(leave)
        return job
