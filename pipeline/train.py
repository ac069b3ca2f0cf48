"""The main job: from a recipe to a trained policy, a run directory and a summary.

The phases, in order: compile, warm start, evaluate, learn by reinforcement, evaluate. The
run's files are whole whenever it ends; a signal ends it in order, with all environments closed.
"""

import math
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import trio

from ..envs.sandbox.audit import FILE_NAME as AUDIT_FILE
from ..envs.sandbox.audit import AuditLog, audit_to
from .assemble import Parts, make_pack, make_start
from .config import Recipe
from .controller import LISTED_EPISODES, Controller, Stages, Update
from .controller_state import ControllerState, Saves
from .errors import stage
from .evaluate import Evaluation, evaluate, for_evaluation
from .journal import Account, Before, Journal, Totals
from .observe.compilations import CompilationCounter
from .observe.metrics import peak_rss_bytes
from .observe.run_directory import CHECKPOINTS_FOLDER, POLICY_FOLDER, RunDirectory
from .observe.view import View
from .policy.start import without_params
from .prediction import say_what_to_expect
from .replica import Replica, make_replica
from .rollout.group import Flight
from .saved_run import SavedRun
from .saver import Saver
from .summary import summarised
from .supervise import ForcedEnd, describe_on_signal, guard_loop, stop_on_signal
from .waits import Waits

Serve = Callable[[trio.TaskStatus[None]], Awaitable[None]]

REFRESH_SECONDS = 0.25


class Job:
    """One run of a recipe: make it, await `run` once, then read `interrupted_by`."""

    def __init__(
        self,
        recipe: Recipe,
        parts: Parts,
        directory: RunDirectory,
        view: View,
        *,
        saved: SavedRun | None = None,
    ):
        """Args:
        parts: from `assemble(recipe)`.
        directory: a new one, or that of a run to go on with.
        saved: of the latest checkpoint there, from which the run goes on; None: begin.
        """
        # Without the directory, so that the file of settings can be run again.
        self._recipe = recipe = replace(recipe, run=replace(recipe.run, dir=None))
        self._parts = parts
        self._directory = directory
        self._view = view
        self._saved = saved
        self._saver = Saver(recipe, parts, directory.path / CHECKPOINTS_FOLDER, saved)
        self._waits = Waits()
        self._flight = Flight()  # of the evaluations before and after training
        self._evaluation_deadline = math.inf
        self._controller: Controller | None = None  # while it runs
        self._learner_busy_seconds: Callable[[], float] = float  # 0 until there is a learner
        self._params_sha256: str | None = None
        self._began_seconds = 0.0
        self.interrupted_by: signal.Signals | None = None

    async def run(self, began_seconds: float) -> None:
        """Run all phases, or as far as a signal or an error lets it.

        The summary is written in every case.

        Args:
          began_seconds: of `time.monotonic()` when the command started.

        Raises:
          StageFailed: in an exception group, if a stage of the pipeline fails.
        """
        directory, saved = self._directory, self._saved
        directory.write_config(asdict(self._recipe))
        directory.cut({} if saved is None else saved.lengths)
        self._began_seconds = began_seconds - (0.0 if saved is None else saved.wall_seconds)
        with (
            CompilationCounter() as compilations,
            closing(directory.open_metrics()) as metrics,
            closing(directory.open_trajectories()) as trajectories,
            AuditLog(directory.path / AUDIT_FILE, self._recipe.run.name) as calls,
            audit_to(calls),
        ):
            journal = Journal(
                self._view,
                metrics,
                trajectories,
                algorithm=self._recipe.algorithm,
                read_totals=self._read_totals,
                before=None if saved is None else _before(saved),
            )
            summarise = partial(self._summarise, journal, compilations)
            limit = self._recipe.controller.exit_deadline_seconds
            with summarised(
                directory, summarise, self._describe, exit_deadline_seconds=limit
            ) as forced:
                await self._run_stages(journal, compilations, forced)

    async def _run_stages(
        self, journal: Journal, compilations: CompilationCounter, forced: ForcedEnd
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forced.arm_when_cancelled)
            nursery.start_soon(forced.arm_while, self._is_ending)
            nursery.start_soon(
                stop_on_signal, partial(self._stop, nursery.cancel_scope), self._view.close
            )
            nursery.start_soon(describe_on_signal, self._describe, self._view.note)
            nursery.start_soon(guard_loop, self._recipe.controller.loop_blocked_seconds)
            nursery.start_soon(self._refresh_view)
            self._view.note(self._parts.topology.describe())
            nursery.start_soon(
                say_what_to_expect, self._recipe, self._directory.config_path, self._view.note
            )
            nursery.start_soon(self._parts.processes.watch)
            await nursery.start(self._serve, "sampler", self._parts.sampler.serve)
            if self._parts.topology.placement == "disaggregated":
                await nursery.start(self._serve, "learner", self._parts.device.serve)
            await self._run_phases(journal, compilations)
            nursery.cancel_scope.cancel()

    async def _run_phases(self, journal: Journal, compilations: CompilationCounter) -> None:
        replica = await self._prepare()
        # Nobody here keeps the saved state: the groups in it are released as they are taken.
        state = replica.take_state()
        if state is None:
            with self._preparing("weight_sync", "publishing 0"):
                await self._publish(replica, 0)
        controller = self._make_controller(replica, journal, state)
        del state
        compilations.mark()
        if self._saved is None:
            await self._evaluate("before", journal)
        await self._reinforce(controller, journal)
        if self.interrupted_by is None:
            await self._evaluate("after", journal)
            await self._keep_policy(replica)

    async def _serve(self, name: str, serve: Serve, task_status: trio.TaskStatus[None]) -> None:
        with stage(name):
            await serve(task_status)

    # The phases.

    async def _prepare(self) -> Replica:
        """Make the learner from the policy, whose own weights nobody here keeps."""
        recipe, parts = self._recipe, self._parts
        start = await parts.device.run(partial(make_start, recipe, parts))
        parts = self._parts = replace(parts, policy=without_params(parts.policy))
        replica = await make_replica(
            recipe, parts, start, self._saver, preparing=self._preparing, view=self._view
        )
        self._learner_busy_seconds = partial(getattr, replica.learner, "busy_seconds")
        return replica

    def _make_controller(
        self, replica: Replica, journal: Journal, state: ControllerState | None
    ) -> Controller:
        recipe, parts, learner = self._recipe, self._parts, replica.learner

        async def save(state: ControllerState) -> None:
            wall_seconds = time.monotonic() - self._began_seconds
            await self._saver.save(
                state,
                lengths=self._directory.lengths(),
                journal=journal.table(),
                wall_seconds=wall_seconds,
            )

        every = recipe.checkpoint.every
        stages = Stages(
            tasks=parts.tasks,
            rollout=parts.rollout,
            pack=make_pack(recipe, parts),
            learner=learner,
            publish=partial(self._publish, replica),
            hold=parts.sampler.hold,
            load=parts.sampler.load,
            evaluate=partial(self._evaluate_meanwhile, journal) if recipe.evaluate.tasks else None,
            saves=Saves(every, save) if every else None,
        )

        def on_update(update: Update) -> None:
            journal.record(update, controller)

        controller = Controller(
            stages,
            recipe.schedule,
            recipe.controller,
            steps=recipe.run.steps,
            seed=recipe.run.seed,
            on_update=on_update,
            evaluate_every=recipe.evaluate.every,
            saved=state,
        )
        return controller

    async def _publish(self, replica: Replica, version: int) -> None:
        """Bring weights to the sampler; they count as published once it has acknowledged them."""
        params = await self._parts.device.run(partial(replica.export, version))
        await self._parts.sampler.publish(params, version)

    async def _reinforce(self, controller: Controller, journal: Journal) -> None:
        """Run the pipeline: reinforcement learning proper."""
        self._controller = controller
        self._view.phase("training")
        with journal.phase(controller):
            await controller.run()
        self._controller = None  # it has ended, and so has all that it started

    async def _evaluate(self, when: str, journal: Journal) -> None:
        """Measure the policy while nothing else runs."""
        config = self._recipe.evaluate
        if config.tasks == 0:
            return
        self._view.phase(f"evaluating {when} training")
        self._evaluation_deadline = trio.current_time() + config.deadline_seconds
        with stage("evaluate"):
            evaluation = await self._measure(f"evaluation {when} training", self._flight)
        self._evaluation_deadline = math.inf
        journal.evaluated(when, evaluation)

    async def _evaluate_meanwhile(self, journal: Journal, version: int, flight: Flight) -> None:
        """Measure a version while training goes on, unless it was before a restart."""
        if not journal.has_evaluated(version):
            name = f"evaluation of version {version}"
            evaluation = await self._measure(name, flight, version=version)
            journal.evaluated_meanwhile(version, evaluation)

    async def _measure(
        self, name: str, flight: Flight, *, version: int | None = None
    ) -> Evaluation:
        config, parts = self._recipe.evaluate, self._parts
        return await evaluate(
            for_evaluation(parts.rollout, config, training=version is not None),
            parts.held_out,
            seed=self._recipe.run.seed,
            deadline_seconds=config.deadline_seconds,
            version=version,
            flight=flight,
            name=f"{name}, episode",
        )

    async def _keep_policy(self, replica: Replica) -> None:
        device = self._parts.device
        with self._preparing("learner", "hashing the parameters"):
            self._params_sha256 = await device.run(replica.fingerprint)
        if self._recipe.run.save_policy:
            save = partial(replica.save, self._directory.path / POLICY_FOLDER)
            with self._preparing("learner", "saving the policy"):
                await device.run(save)

    # What goes on beside the phases.

    def _preparing(self, name: str, what: str) -> AbstractContextManager[None]:
        """Work within the deadline of what comes before and after training."""
        deadline = self._recipe.controller.prepare_deadline_seconds
        setting = "--controller.prepare-deadline-seconds"
        return self._waits.on(name, what, deadline, setting=setting)

    def _stop(self, run_scope: trio.CancelScope, number: signal.Signals) -> None:
        """End at once, or after this update where the run can go on from it."""
        self.interrupted_by = number
        saving = self._controller is not None and self._recipe.checkpoint.every > 0
        after = "stopping after the work" if not saving else "saving a checkpoint after the update"
        self._view.note(
            f"{number.name}: {after} of this moment, closing all environments (again: at once)"
        )
        if saving and self._controller is not None:
            self._controller.stop()
        else:
            run_scope.cancel()

    def _is_ending(self) -> bool:
        """Whether something was cancelled and should end, but may not."""
        overdue = trio.current_time() > self._evaluation_deadline
        return overdue or (self._controller is not None and self._controller.ending)

    def _describe(self, now: float) -> Sequence[str]:
        controller = [] if self._controller is None else self._controller.describe(now)
        episodes = self._flight.describe(now, most=LISTED_EPISODES)
        return [*self._waits.describe(now), *episodes, *controller]

    async def _refresh_view(self) -> None:
        while True:
            self._view.refresh()
            await trio.sleep(REFRESH_SECONDS)

    # What is told of the run.

    def _read_totals(self) -> Totals:
        statistics = self._parts.sampler.statistics()
        return Totals(
            generated_tokens=statistics.generated_tokens,
            sampler_busy_seconds=statistics.busy_seconds,
            learner_busy_seconds=self._learner_busy_seconds(),
        )

    def _summarise(self, journal: Journal, compilations: CompilationCounter) -> dict[str, Any]:
        run, saved = self._recipe.run, self._saved
        return {
            **run.identity(steps=run.steps, interrupted_by=self.interrupted_by),
            "devices": self._parts.topology.table(),
            "wall_seconds": time.monotonic() - self._began_seconds,
            **journal.summary(),
            "resumed_from": [] if saved is None else saved.resumed_from,
            "params_sha256": self._params_sha256,
            "compilations_after_warmup": compilations.since_mark,
            "peak_rss_bytes": peak_rss_bytes(),
        }


def _before(saved: SavedRun) -> Before:
    flight = Flight.after(saved.controller["ended"])
    return Before(Account.from_table(saved.journal), saved.ledger, flight)
