"""The controller: one nursery in which all stages run, in the order of `pipeline`'s table.

It owns the ledger, reports events to it and carries its decisions out; about versions it
decides nothing itself. A stage that fails ends the run with its name (`errors.stage`).
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from ..envs.base import Task
from .errors import PipelineStalled, stage
from .groups import ledger
from .groups.batching import BatchStatistics
from .rollout.episode import Rollout
from .rollout.group import Flight, run_group
from .types import GroupOutcome, TrainBatch, TrajectoryGroup

EQUAL_GROUPS_A_FAILURE = 10  # a group of equal rewards is that much less of a bad sign


class Tasks(Protocol):
    """An endless stream of tasks."""

    def next(self) -> Task:
        """Return the next task."""
        ...


class Learner(Protocol):
    """The learner as the controller sees it."""

    async def update(self, batch: TrainBatch) -> Mapping[str, float]:
        """Apply one batch; return the update's metrics."""
        ...


@dataclass(frozen=True)
class Stages:
    """What the pipeline is made of; fakes and real parts alike.

    Attributes:
      pack: `pack(groups, batch number)` makes one batch of whole groups.
      publish: brings the learner's weights to the sampler as the given version; returns when
        they are in use.
    """

    tasks: Tasks
    rollout: Rollout
    pack: Callable[[Sequence[TrajectoryGroup], int], tuple[TrainBatch, BatchStatistics]]
    learner: Learner
    publish: Callable[[int], Awaitable[None]]


@dataclass(frozen=True)
class Update:
    """What is known after one update, for observers.

    Attributes:
      batch: the batch's number, which is the version that it was applied to.
    """

    batch: int
    groups: Sequence[TrajectoryGroup]
    statistics: BatchStatistics
    metrics: Mapping[str, float]


class Controller:
    """Runs `steps` updates.

    Example: see `tests/test_controller.py`, which runs it with fakes under a virtual clock.
    """

    def __init__(
        self,
        stages: Stages,
        schedule: ledger.Schedule,
        *,
        steps: int,
        seed: int,
        on_update: Callable[[Update], None],
        group_failures: int = 32,
    ):
        """Args:
        steps: updates to make.
        seed: decides the episodes' random keys.
        on_update: called after each update; must not block.
        group_failures: so many failed groups in a row end the run, and ten times as many that
          are dropped for equal rewards.
        """
        self.ledger = ledger.Ledger(schedule)
        self.flight = Flight()
        self._stages = stages
        self._steps = steps
        self._seed = seed
        self._on_update = on_update
        self._group_failures = group_failures
        self._failed_in_a_row = 0
        self._equal_in_a_row = 0
        self._last_error = ""
        self._scopes: dict[int, trio.CancelScope] = {}
        self._tasks: dict[int, Task] = {}
        self._groups: dict[int, TrajectoryGroup] = {}
        self._again: deque[tuple[Task, int]] = deque()
        self._formed: tuple[int, list[TrajectoryGroup]] | None = None
        self._changed = trio.Event()

    async def run(self) -> None:
        """Run all stages until the last update is published.

        Every environment is closed on return, also after an error or a cancellation.

        Raises:
          StageFailed: in an exception group, if a stage fails.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._admit_groups)
                await self._learn()
                nursery.cancel_scope.cancel()
        finally:
            # All tasks have ended here, so there is nothing left to carry out.
            self.ledger, _ = ledger.advance(self.ledger, ledger.Abandoned())

    # Steps 1 to 5: tasks become groups of finished episodes.

    async def _admit_groups(self) -> None:
        """Start a group whenever the schedule and `max_episodes` leave room."""
        with stage("groups"):
            async with trio.open_nursery() as groups:
                while True:
                    self._check_use()
                    while self._may_admit():
                        groups.start_soon(self._run_group, *self._admit())
                    await self._changed.wait()

    def _may_admit(self) -> bool:
        # Not bounded by what the last updates still need: a straggler would then hold them up.
        config = self._stages.rollout.config
        room = config.max_episodes - len(self._scopes) * config.group_size
        return ledger.may_admit(self.ledger) > 0 and room >= config.group_size

    def _admit(self) -> tuple[int, Task]:
        index = self.ledger.admitted
        task, attempt = self._again.popleft() if self._again else (self._next_task(), 0)
        self._tasks[index] = task
        self._scopes[index] = trio.CancelScope()
        self._report(ledger.Admitted(task.id, attempt))
        return index, task

    def _next_task(self) -> Task:
        with stage("prompts"):
            return self._stages.tasks.next()

    async def _run_group(self, index: int, task: Task) -> None:
        outcome: GroupOutcome | None = None
        with self._scopes[index] as scope:
            outcome = await run_group(
                self._stages.rollout, task, index=index, seed=self._seed, flight=self.flight
            )
        del self._scopes[index]
        if outcome is None or scope.cancel_called:  # the ledger knows already
            self._forget(index)
            self._notify()
        elif outcome.group is None:
            self._conclude_failure(outcome)
        else:
            self._conclude(outcome.group)

    def _conclude(self, group: TrajectoryGroup) -> None:
        self._groups[group.index] = group
        useful = len({trajectory.reward for trajectory in group.trajectories}) > 1
        self._failed_in_a_row = 0
        self._equal_in_a_row = 0 if useful else self._equal_in_a_row + 1
        self._report(ledger.GroupReady(group.index, group.oldest_version, useful=useful))

    def _conclude_failure(self, outcome: GroupOutcome) -> None:
        self._failed_in_a_row += 1
        self._last_error = outcome.failures[-1].error
        self._report(ledger.GroupFailed(outcome.index, str(outcome.failures[-1].kind)))

    def _check_use(self) -> None:
        """End a run whose groups are never used; it would go on for ever."""
        if self._failed_in_a_row >= self._group_failures:
            raise PipelineStalled(
                f"{self._failed_in_a_row} groups in a row failed, the last one with "
                f"{self._last_error!r}; mend the environment, or raise --run.group-failures"
            )
        dropped = self._equal_in_a_row if self.ledger.schedule.equal_rewards == "drop" else 0
        if dropped >= EQUAL_GROUPS_A_FAILURE * self._group_failures:
            raise PipelineStalled(
                f"{dropped} groups in a row were dropped since all their rewards were equal: "
                "nothing is left to learn, or nothing can be; set --schedule.equal-rewards keep"
            )

    # Steps 6 to 10: groups become batches, updates and new versions.

    async def _learn(self) -> None:
        for _ in range(self._steps):
            batch, groups = await self._next_batch()
            with stage("batching"):
                packed, statistics = self._stages.pack(groups, batch)
            with stage("learner"):
                metrics = await self._stages.learner.update(packed)
            self._report(ledger.Committed(batch))
            await self._publish(ledger.publish_due(self.ledger))
            with stage("observe"):
                self._on_update(Update(batch, groups, statistics, metrics))
        # With publish_every > 1 the last updates may not be due; what follows wants them.
        await self._publish(self.ledger.committed)

    async def _publish(self, version: int | None) -> None:
        if version is None or version <= self.ledger.published:
            return
        with stage("weight_sync"):
            await self._stages.publish(version)
        self._report(ledger.Published(version))

    async def _next_batch(self) -> tuple[int, list[TrajectoryGroup]]:
        """Wait until the ledger forms the next batch."""
        self._report(ledger.BatchRequested())
        while self._formed is None:
            await self._changed.wait()
        formed, self._formed = self._formed, None
        return formed

    # The ledger's events and decisions.

    def _report(self, event: ledger.Event) -> None:
        self.ledger, decisions = ledger.advance(self.ledger, event)
        tasks = {task.id: task for task in self._tasks.values()} if decisions else {}
        for decision in decisions:
            self._carry_out(decision, tasks)
        self._notify()

    def _carry_out(self, decision: ledger.Decision, tasks: Mapping[str, Task]) -> None:
        match decision:
            case ledger.FormBatch():
                groups = [self._groups[index] for index in decision.indexes]
                self._formed = decision.batch, groups
                for index in decision.indexes:
                    self._forget(index)
            case ledger.Cancel():
                self._scopes[decision.index].cancel()
            case ledger.Drop():
                self._forget(decision.index)
            case ledger.Reissue():
                self._again.append((tasks[decision.task_id], decision.attempt))

    def _forget(self, index: int) -> None:
        self._tasks.pop(index, None)
        self._groups.pop(index, None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
