"""The main job: from a recipe to a trained policy, a run directory and a summary.

The phases, in order: compile, warm start, evaluate, learn by reinforcement, evaluate. The
run's files are whole whenever it ends; a signal ends it in order, with all environments closed.
"""

import math
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import trio

from ..envs.sandbox.audit import FILE_NAME as AUDIT_FILE
from ..envs.sandbox.audit import AuditLog, audit_to
from .assemble import (
    Parts,
    conversations,
    make_convert,
    make_learner,
    make_pack,
    make_sft_learner,
    make_start,
)
from .config import Recipe
from .controller import LISTED_EPISODES, Controller, Stages, Update
from .controller_state import ControllerState, Saves
from .errors import stage
from .evaluate import evaluate, for_evaluation
from .journal import Account, Before, Journal, Totals
from .learner.fingerprint import fingerprint
from .learner.service import Learner
from .learner.state import Params
from .observe.compilations import CompilationCounter
from .observe.metrics import peak_rss_bytes
from .observe.run_directory import POLICY_FOLDER, RunDirectory
from .observe.view import View
from .offline.sft import warm_start
from .policy.record import Policy
from .policy.save import save_policy
from .policy.start import compile_final, without_params
from .prediction import describe_bounds, is_quick, predict, updates_to_simulate
from .rollout.group import Flight
from .saved_run import SavedRun
from .saver import Saver
from .summary import summarised
from .supervise import (
    ForcedEnd,
    describe_on_signal,
    guard_loop,
    stop_on_signal,
)
from .waits import Waits
from .weight_sync import Convert, publish

Finish = Callable[[Params], Policy]
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
        self._learner_busy_seconds: Callable[[], float] = float  # 0 until there is a learner
        self._params_sha256: str | None = None
        self._waits = Waits()
        self._flight = Flight()  # of the evaluations before and after training
        self._evaluation_deadline = math.inf
        self._controller: Controller | None = None
        self._saved = saved
        self._saver = Saver(recipe, parts, directory, saved)
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

    async def _run_stages(
        self, journal: Journal, compilations: CompilationCounter, forced: ForcedEnd
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forced.arm_when_cancelled)
            nursery.start_soon(self._force_an_end_that_hangs, forced)
            nursery.start_soon(
                stop_on_signal, partial(self._stop, nursery.cancel_scope), self._view.close
            )
            nursery.start_soon(describe_on_signal, self._describe, self._view.note)
            nursery.start_soon(guard_loop, self._recipe.controller.loop_blocked_seconds)
            nursery.start_soon(self._refresh_view)
            nursery.start_soon(self._say_what_to_expect)
            await nursery.start(self._serve, "sampler", self._parts.sampler.serve)
            if self._parts.topology.placement == "disaggregated":
                await nursery.start(self._serve, "learner", self._parts.device.serve)
            await self._run_phases(journal, compilations)
            nursery.cancel_scope.cancel()

    async def _force_an_end_that_hangs(self, forced: ForcedEnd) -> None:
        """Arm the forced end while what was cancelled should end but may not.

        Its errors are stuck with it, so nothing else would tell.
        """
        while True:
            if self._is_ending():
                forced.arm()
            else:
                forced.disarm()
            await trio.sleep(REFRESH_SECONDS)

    def _is_ending(self) -> bool:
        overdue = trio.current_time() > self._evaluation_deadline
        return overdue or (self._controller is not None and self._controller.ending)

    async def _say_what_to_expect(self) -> None:
        recipe = self._recipe
        self._view.note(self._parts.topology.describe())
        self._view.note(describe_bounds(recipe.schedule))
        if recipe.run.predict and is_quick(recipe.schedule, recipe.rollout):
            updates = updates_to_simulate(recipe.schedule)
            self._view.note(await predict(self._directory.config_path, updates))
        elif recipe.run.predict:
            self._view.note("too large to predict on the side; see headrace simulate")

    def _describe(self, now: float) -> Sequence[str]:
        controller = [] if self._controller is None else self._controller.describe(now)
        episodes = self._flight.describe(now, most=LISTED_EPISODES)
        return [*self._waits.describe(now), *episodes, *controller]

    def _preparing(self, name: str, what: str) -> AbstractContextManager[None]:
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

    async def _serve(self, name: str, serve: Serve, task_status: trio.TaskStatus[None]) -> None:
        with stage(name):
            await serve(task_status)

    async def _run_phases(self, journal: Journal, compilations: CompilationCounter) -> None:
        learner, convert, finish = await self._prepare()
        with self._preparing("checkpoint", "reading it, or hashing what it must fit"):
            begin = partial(self._saver.begin, learner, convert)
            state = await self._parts.device.run(begin)
        if state is None:
            with self._preparing("weight_sync", "publishing 0"):
                await self._publish(learner, convert, 0)
        compilations.mark()
        if state is None:
            await self._evaluate("before", journal)
        await self._reinforce(learner, convert, journal, state)
        if self.interrupted_by is not None:
            return
        await self._evaluate("after", journal)
        with self._preparing("learner", "hashing the parameters"):
            self._params_sha256 = await self._parts.device.run(lambda: fingerprint(learner.params))
        if self._recipe.run.save_policy:
            with self._preparing("learner", "saving the policy"):
                save = partial(self._save, finish, learner)
                await self._parts.device.run(save)

    def _save(self, finish: Finish, learner: Learner) -> None:
        folder = self._directory.path / POLICY_FOLDER
        save_policy(finish(learner.params), folder, replace=True)

    async def _prepare(self) -> tuple[Learner, Convert, Finish]:
        """Make the learners, compile all programs, and warm the policy up by imitation."""
        recipe, parts = self._recipe, self._parts
        device = parts.device
        start = await device.run(partial(make_start, recipe, parts))
        parts = self._parts = replace(parts, policy=without_params(parts.policy))
        learner: Learner = await device.run(partial(make_learner, recipe, parts, start))
        self._learner_busy_seconds = partial(getattr, learner, "busy_seconds")
        imitator: Learner | None = None
        if recipe.warm_start.steps > 0 and self._saved is None:
            imitator = await device.run(partial(make_sft_learner, recipe, parts, start))
        self._view.phase("compiling")
        with self._preparing("compile", "the programs of sampler and learner"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(learner.compile)
                nursery.start_soon(trio.to_thread.run_sync, parts.sampler.compile)
                if imitator is not None:
                    nursery.start_soon(imitator.compile)
            await trio.lowlevel.checkpoint_if_cancelled()  # a compiler can't be interrupted
            convert: Convert = await device.run(partial(make_convert, recipe, parts, start))
            finish: Finish = await device.run(
                partial(compile_final, parts.policy, start, recipe.lora)
            )
        if imitator is not None:
            with self._preparing("warm_start", "imitating scripts"):
                await self._warm_start(imitator)
                await learner.adopt(imitator.params)
        return learner, convert, finish

    async def _warm_start(self, imitator: Learner) -> None:
        recipe, parts = self._recipe, self._parts

        def on_step(step: int, metrics: Mapping[str, float]) -> None:
            self._view.phase("warm start", step + 1, recipe.warm_start.steps)

        scripts = conversations(recipe, parts)
        await warm_start(
            imitator, scripts, parts.renderer, config=recipe.warm_start, on_step=on_step
        )

    async def _publish(self, learner: Learner, convert: Convert, version: int) -> None:
        sampler, device = self._parts.sampler, self._parts.device

        def read_params() -> Params:
            return learner.params

        saved = self._saver.take_held(version)
        if saved is not None:
            await sampler.publish(saved, version)
            return
        await publish(read_params, sampler, version, convert=convert, device=device)

    async def _evaluate(self, when: str, journal: Journal) -> None:
        config, parts = self._recipe.evaluate, self._parts
        if config.tasks == 0:
            return
        self._view.phase(f"evaluating {when} training")
        self._evaluation_deadline = trio.current_time() + config.deadline_seconds
        with stage("evaluate"):
            evaluation = await evaluate(
                for_evaluation(parts.rollout, config, training=False),
                parts.held_out,
                seed=self._recipe.run.seed,
                deadline_seconds=config.deadline_seconds,
                flight=self._flight,
                name=f"evaluation {when} training, episode",
            )
        self._evaluation_deadline = math.inf
        journal.evaluated(when, evaluation)

    async def _evaluate_meanwhile(self, journal: Journal, version: int, flight: Flight) -> None:
        """Measure a version while training goes on, unless it was before a restart."""
        if journal.has_evaluated(version):
            return
        config, parts = self._recipe.evaluate, self._parts
        evaluation = await evaluate(
            for_evaluation(parts.rollout, config, training=True),
            parts.held_out,
            seed=self._recipe.run.seed,
            deadline_seconds=config.deadline_seconds,
            version=version,
            flight=flight,
            name=f"evaluation of version {version}, episode",
        )
        journal.evaluated_meanwhile(version, evaluation)

    async def _reinforce(
        self,
        learner: Learner,
        convert: Convert,
        journal: Journal,
        state: ControllerState | None,
    ) -> None:
        """Run the pipeline: reinforcement learning proper."""
        recipe, parts = self._recipe, self._parts

        async def save(state: ControllerState) -> None:
            wall_seconds = time.monotonic() - self._began_seconds
            await self._saver.save(
                state, learner, journal=journal.table(), wall_seconds=wall_seconds
            )

        every = recipe.checkpoint.every
        stages = Stages(
            tasks=parts.tasks,
            rollout=parts.rollout,
            pack=make_pack(recipe, parts),
            learner=learner,
            publish=partial(self._publish, learner, convert),
            hold=parts.sampler.hold,
            load=parts.sampler.load,
            evaluate=partial(self._evaluate_meanwhile, journal) if recipe.evaluate.tasks else None,
            saves=Saves(every, save) if every else None,
        )

        def on_update(update: Update) -> None:
            journal.record(update, controller)

        controller = self._controller = Controller(
            stages,
            recipe.schedule,
            recipe.controller,
            steps=recipe.run.steps,
            seed=recipe.run.seed,
            on_update=on_update,
            evaluate_every=recipe.evaluate.every,
            saved=state,
        )
        self._view.phase("training")
        with journal.phase(controller):
            await controller.run()
        self._controller = None  # it has ended, and so has all that it started

    async def _refresh_view(self) -> None:
        while True:
            self._view.refresh()
            await trio.sleep(REFRESH_SECONDS)

    def _read_totals(self) -> Totals:
        statistics = self._parts.sampler.statistics()
        return Totals(
            generated_tokens=statistics.generated_tokens,
            sampler_busy_seconds=statistics.busy_seconds,
            learner_busy_seconds=self._learner_busy_seconds(),
        )


def _before(saved: SavedRun) -> Before:
    flight = Flight.after(saved.controller["ended"])
    return Before(Account.from_table(saved.journal), saved.ledger, flight)
