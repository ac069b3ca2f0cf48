"""The controller: one nursery in which all stages run, in the order of `pipeline`'s table.

It owns the ledger, reports events to it and carries its decisions out; about versions it
decides nothing itself. Every wait has a name and a deadline. A stage that fails ends the run
with its name (`errors.stage`), and so does a run in which nothing moves.
"""

from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import assert_never

import trio

from ..envs.base import Task
from .budgets import Budgets
from .controller_state import ControllerState, member_rule
from .errors import PipelineStalled, StageFailed, stage
from .evaluations import Evaluations
from .groups import ledger
from .held_versions import HeldVersions
from .outstanding import Outstanding
from .rollout import concurrency
from .rollout.group import Flight, Group
from .stages import ControllerConfig, Stages, Update
from .types import Outcome, Trajectory, TrajectoryGroup
from .waits import Waits, stalled, watch

__all__ = ["Controller", "ControllerConfig", "Stages", "Update"]

LISTED_EPISODES = 20  # in reports for people


class Controller:
    """Runs `steps` updates.

    Example: see `tests/controller/`, which runs it with fakes under a virtual clock.
    """

    def __init__(
        self,
        stages: Stages,
        schedule: ledger.Schedule,
        config: ControllerConfig | None = None,
        *,
        steps: int,
        seed: int,
        on_update: Callable[[Update], None],
        evaluate_every: int = 0,
        saved: ControllerState | None = None,
    ):
        """Args:
        steps: updates to make.
        seed: decides the episodes' random keys.
        on_update: called after each update; must not block.
        evaluate_every: updates between two evaluations; 0 makes none.
        saved: what to go on from; then `run` publishes its weights. Else the caller has.
        """
        rollout = stages.rollout.config
        self.ledger = ledger.Ledger(schedule, member_rule(rollout))
        self.flight = Flight()
        self.waits = Waits()
        self._stages = stages
        self._config = config or ControllerConfig()
        self._steps = steps
        self._seed = seed
        self._on_update = on_update
        self.evaluations = Evaluations(stages, self.waits, every=evaluate_every, steps=steps)
        self._budgets = Budgets(
            self._config.group_failures,
            self._config.unscored_share,
            env_name=stages.rollout.env_name,
        )
        self._members = 0  # running now, until their environments are closed
        self._limit = concurrency.start(rollout.max_episodes, stages.load())
        self._outstanding = Outstanding(stages.rollout, stages.tasks)
        self._formed: tuple[int, list[TrajectoryGroup]] | None = None
        self._batch_is_formed = trio.Event()
        self._held = HeldVersions(stages.hold)
        self._stopping = False
        self._until_stopped = trio.CancelScope()  # the wait for a batch
        self._saved = saved
        self._saved_after = -1  # so many updates
        if saved is not None:
            self._take_up(saved)
        self._moved = 0.0
        self.ending = False  # true once what runs is cancelled, and should end soon
        self._nursery: trio.Nursery | None = None
        self._context = copy_context()  # in which members begin

    async def run(self) -> None:
        """Run all stages until the last update is published and the last evaluation has ended.

        Every environment is closed on return, also after an error or a cancellation.

        Raises:
          StageFailed: in an exception group, if a stage fails or nothing moves any more.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                limit = self._config.stall_after_seconds(self._stages.rollout.config)
                nursery.start_soon(watch, self._last_move, limit, self.describe)
                nursery.start_soon(self._notice_the_end)
                if self._saved is None:
                    self._hold(self.ledger.published)
                else:
                    await self._resume(self._saved)
                self._admit()
                async with trio.open_nursery() as evaluations:
                    await self._learn(evaluations)
                    self._end()
                nursery.cancel_scope.cancel()
        except BaseException as error:
            try:
                self._end()
            except StageFailed as later:
                both = [error, later]
                raise BaseExceptionGroup("a run that failed can't end in order", both) from error
            raise
        self._end()
        self._check_whole()

    def describe(self, now: float) -> list[str]:
        """Say who waits for what since when, one line each, for people.

        Args:
          now: the present time of trio's clock; so it can be asked from any thread.
        """
        counts = ledger.counts(self.ledger)
        return [
            f"versions: {self.ledger.committed} committed, {self.ledger.published} published; "
            f"groups: {counts.running} running, {counts.ready} ready, {counts.in_batch} in a "
            f"batch, {ledger.may_admit(self.ledger)} more may start",
            *self.waits.describe(now),
            *self.evaluations.flight.describe(now, most=LISTED_EPISODES),
            *self.flight.describe(now, most=LISTED_EPISODES),
        ]

    # Steps 1 to 5: tasks become groups of finished episodes.

    def _admit(self) -> None:
        """Start groups while the schedule and the limits leave room.

        Not bounded by what the last updates still need: a straggler would then hold them up.
        """
        allowed = ledger.may_admit(self.ledger)
        if allowed == 0:
            return
        config = self._stages.rollout.config
        limit = self._limit.limit if self._config.concurrency == "auto" else config.max_episodes
        room = (max(int(limit), config.group_size) - self._members) // config.group_size
        if room > 0:
            self._admit_groups(min(room, allowed), config.group_size)

    def _admit_groups(self, count: int, size: int) -> None:
        first = self.ledger.admitted
        given = self._outstanding.give_out(count)
        issues = tuple([ledger.Issue(task.id, attempt) for task, attempt in given])
        self.ledger, _ = ledger.advance(self.ledger, ledger.Admitted(issues))
        for index, (task, _) in enumerate(given, first):
            # Whoever's end made room, members see no context variable that it has set.
            self._context.run(self._start, task, index, size)

    def _start(self, task: Task, index: int, size: int) -> None:
        assert self._nursery is not None
        version = ledger.sampled_version(self.ledger, index)
        group = self._outstanding.start(task, index, version)
        for member in range(size):
            self._members += 1
            self._nursery.start_soon(self._run_member, group, member, name="member of a group")

    async def _run_member(self, group: Group, member: int) -> None:
        with stage("groups"):
            try:
                await group.run_member(
                    member, seed=self._seed, flight=self.flight, conclude=self._conclude
                )
            finally:
                self._members -= 1
            self._count_ended()
            self._admit()

    def _count_ended(self) -> None:
        if self._config.concurrency == "auto":
            with stage("sampler"):
                self._limit = concurrency.episode_ended(self._limit, self._stages.load())

    def _conclude(self, index: int, member: int, attempt: int, outcome: Outcome) -> bool:
        """Tell the ledger of an outcome; return whether the member is to be run again."""
        event: ledger.Event
        if isinstance(outcome, Trajectory):
            event = ledger.MemberDone(
                index,
                member,
                attempt,
                outcome.oldest_version,
                outcome.newest_version,
                outcome.reward,
            )
        else:
            event = ledger.MemberFailed(index, member, attempt, str(outcome.kind))
        self._budgets.ended(outcome)
        again = False
        for decision in self._report(event):
            self._budgets.decided(decision, outcome)
            again = again or isinstance(decision, ledger.Retry)
        return again

    # Steps 6 to 10: groups become batches, updates and new versions.

    async def _learn(self, evaluations: trio.Nursery) -> None:
        self.evaluations.start_if_due(evaluations, self.ledger)  # the one that a kill ended
        while self.ledger.committed < self._steps:
            formed = await self._next_batch()
            if formed is None:
                break
            batch, groups = formed
            # In lockstep all groups of a batch may have failed: a version without an update.
            update = await self._update(batch, groups) if groups else None
            self._report(ledger.Committed(batch))
            await self._publish(ledger.publish_due(self.ledger))
            self.evaluations.start_if_due(evaluations, self.ledger)
            if update is not None:
                with stage("observe"):
                    self._on_update(update)
            await self._save()
        await self._save(last=True)
        if self.ledger.committed == self._steps:
            # With publish_every > 1 the last updates may not be due; what follows wants them.
            await self._publish(self.ledger.committed)

    async def _update(self, batch: int, groups: list[TrajectoryGroup]) -> Update:
        with stage("batching"):
            packed, statistics = self._stages.pack(groups, batch)
        deadline = self._config.update_deadline_seconds
        setting = "--controller.update-deadline-seconds"
        with self.waits.on("learner", f"update {batch + 1}", deadline, setting=setting):
            metrics = await self._stages.learner.update(packed)
            if not isinstance(metrics, Mapping):
                raise TypeError(f"update must return metrics by name, got {metrics!r:.100}")
        return Update(batch, groups, statistics, metrics)

    async def _publish(self, version: int | None) -> None:
        if version is not None and version > self.ledger.published:
            await self._bring(version)
            self._report(ledger.Published(version))
            self._release()
            self._admit()

    async def _bring(self, version: int) -> None:
        deadline = self._config.publish_deadline_seconds
        setting = "--controller.publish-deadline-seconds"
        with self.waits.on("weight_sync", f"publishing {version}", deadline, setting=setting):
            await self._stages.publish(version)
        self._hold(version)

    async def _next_batch(self) -> tuple[int, list[TrajectoryGroup]] | None:
        """Wait until the ledger forms the next batch; None: the run was stopped before."""
        if self._stopping:
            return None
        deadline = self._config.batch_deadline_seconds
        setting = "--controller.batch-deadline-seconds"
        self._batch_is_formed = trio.Event()
        with (
            self.waits.on("groups", "a batch", deadline, setting=setting),
            trio.CancelScope() as self._until_stopped,
        ):
            self._report(ledger.BatchRequested())
            self._admit()
            await self._batch_is_formed.wait()
        formed, self._formed = self._formed, None
        return formed

    # The ledger's events and decisions.

    def _report(self, event: ledger.Event) -> ledger.Decisions:
        self.ledger, decisions = ledger.advance(self.ledger, event)
        self._moved = trio.current_time()
        dropped: dict[str, Task] = {}
        for decision in decisions:
            self._carry_out(decision, dropped)
        if decisions and self._held:
            self._release()
        if ledger.is_stuck(self.ledger):
            why = "the learner waits, nothing runs and nothing may be started"
            raise stalled(why, self.describe)
        return decisions

    def _carry_out(self, decision: ledger.Decision, dropped: dict[str, Task]) -> None:
        match decision:
            case ledger.FormBatch():
                self._formed = decision.batch, self._outstanding.take(decision.indexes)
                self._batch_is_formed.set()
            case ledger.Collect():
                self._outstanding.collect(decision.index, decision.members)
            case ledger.Drop():
                task = self._outstanding.drop(decision.index, decision.reason)
                dropped[task.id] = task
            case ledger.Reissue():
                self._outstanding.again.append((dropped[decision.task_id], decision.attempt))
            case ledger.Retry():
                pass  # the member's own task goes on, see `_conclude`
            case ledger.Restart():
                assert self._saved is not None
                size = self._stages.rollout.config.group_size
                self._start(self._saved.running[decision.index], decision.index, size)
            case _:
                assert_never(decision)

    def _check_whole(self) -> None:
        """Refuse to end in silence before the last update.

        A cancellation that escapes from the scope that it belongs to ends a nursery without error.
        """
        done = self.ledger.published  # as the last one always is
        if done < self._steps and not self._stopping:
            with stage("controller"):
                raise PipelineStalled(
                    f"cancelled from within at version {done} of {self._steps}: a trio.Cancelled "
                    "escaped from its scope, maybe in an async generator; mend that code"
                )

    def _end(self) -> None:
        """Give up what is outstanding; nothing more starts."""
        self.ledger, _ = ledger.advance(self.ledger, ledger.Abandoned())
        self._outstanding.drop_all(ledger.RUN_ENDED)
        self._release()

    def _hold(self, version: int) -> None:
        """In lockstep, keep a version that was just published as long as groups need it."""
        if self.ledger.schedule.deterministic:
            self._held.hold(version)

    def _release(self) -> None:
        if self.ledger.ended:
            self._held.release()
        elif self.ledger.schedule.deterministic:
            self._held.release(below=ledger.oldest_needed(self.ledger))

    # Saving, and going on from what was saved.

    def stop(self) -> None:
        """Let the run end after the update of this moment, if there is one, and save that."""
        self._stopping = True
        self._until_stopped.cancel()
        self.evaluations.stop()

    async def _save(self, *, last: bool = False) -> None:
        saves, done = self._stages.saves, self.ledger.committed
        if saves is None or done == self._saved_after or (done % saves.every and not last):
            return
        deadline = self._config.save_deadline_seconds
        setting = "--controller.save-deadline-seconds"
        with self.waits.on("checkpoint", f"after update {done}", deadline, setting=setting):
            state = self._state()
            with self._held.hold_again(state.held):
                await saves.save(state)
        self._saved_after = done

    def _state(self) -> ControllerState:
        outstanding = self._outstanding
        return ControllerState(
            ledger=self.ledger,
            running={each.index: outstanding.task(each.index) for each in self.ledger.running},
            ready=dict(outstanding.ready),
            again=tuple(outstanding.again),
            held=self._held.versions(ledger.oldest_needed(self.ledger), self.ledger.committed),
            budgets=self._budgets.state,
            ended=self.flight.ended,
        )

    def _take_up(self, saved: ControllerState) -> None:
        self.ledger = saved.ledger
        self.flight = Flight.after(saved.ended)
        self._budgets.state = saved.budgets
        self._outstanding.put_back(saved.ready.values(), saved.again)
        self._saved_after = saved.ledger.committed

    async def _resume(self, saved: ControllerState) -> None:
        """Bring all weights back before the first token, and start what was running anew."""
        newest = ledger.resumed_version(self.ledger)
        for version in sorted({*saved.held, newest}):
            await self._bring(version)
        self._report(ledger.Resumed(newest))
        self._saved = None  # the groups in it go with their batches

    # The watchdog.

    def _last_move(self) -> float:
        """Say when there was a call, an outcome, an update or a publish last."""
        return max(self._moved, self.flight.moved, self.evaluations.flight.moved)

    async def _notice_the_end(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.ending = True
