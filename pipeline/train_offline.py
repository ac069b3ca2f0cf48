"""The job of training without rollouts: from a recipe to a policy, a run directory, a summary.

The phases, in order: compile, measure, learn, measure, save. The next batch is read and packed on
a thread of its own while the device learns from this one. A signal ends the run after the update
of that moment, a row that can't be used ends it at once; in both cases what has been learnt is
saved. Every wait has a name and a deadline; a thread that hangs is given up, and the run ends with
its name. The run's files are whole whenever it ends.

Law 17: a run that is killed at any point and goes on from its last checkpoint, or from the
beginning where there is none, ends with the parameters of one that wasn't, bit for bit.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import trio

from .algorithms.alarms import Watch
from .device_thread import DeviceThread
from .errors import ConfigError, PipelineStalled, stage
from .observe.compilations import CompilationCounter
from .observe.metrics import peak_rss_bytes
from .observe.run_directory import CHECKPOINTS_FOLDER, POLICY_FOLDER, RunDirectory
from .observe.sinks import Sink
from .observe.view import View
from .offline.assemble import OfflineParts, Packed, held_out_examples
from .offline.config import OfflineRecipe
from .offline.lessons import Lesson, Read, lessons
from .offline.progress import Progress, Saved
from .offline.replica import OfflineReplica
from .offline.saver import OfflineSaver
from .policy.start import without_params
from .summary import summarised
from .supervise import (
    BLOCKED_SECONDS,
    ForcedEnd,
    describe_on_signal,
    guard_loop,
    stop_on_signal,
)
from .waits import Waits, watch

ABANDONED_AFTER_SECONDS = 10.0  # a thread that doesn't end, unless a forced end comes before


class OfflineJob:
    """One run without rollouts: make it, await `run` once, then read `interrupted_by`."""

    def __init__(
        self,
        recipe: OfflineRecipe,
        parts: OfflineParts,
        directory: RunDirectory,
        view: View,
        *,
        saved: Saved | None = None,
    ) -> None:
        """Args:
        parts: from `assemble_offline(recipe)`.
        directory: a new one, or that of a run to go on with.
        saved: of the latest checkpoint there, from which the run goes on; None: begin.
        """
        # Without the directory, so that the file of settings can be run again.
        self._recipe = replace(recipe, run=replace(recipe.run, dir=None))
        self._parts = parts
        self._directory = directory
        self._view = view
        self._saved = saved
        self._waits = Waits()
        self._watch = Watch(view.note, compares_members=False)
        within = min(ABANDONED_AFTER_SECONDS, recipe.waits.exit_deadline_seconds)
        self._device = DeviceThread("headrace-learner", close_deadline_seconds=within)
        self._reader = DeviceThread("headrace-reader", close_deadline_seconds=within)
        self._reading = trio.CancelScope()  # of the learner's wait for rows
        self._progress = Progress() if saved is None else saved.progress
        self._saver = OfflineSaver(self._recipe, directory.path / CHECKPOINTS_FOLDER, saved)
        self._kept = self._progress.updates  # of the latest checkpoint
        self._began_seconds = 0.0
        self._position = None if saved is None else saved.position
        self._params_sha256: str | None = None
        self.interrupted_by: signal.Signals | None = None

    async def run(self, began_seconds: float) -> None:
        """Run all phases, or as far as a signal or an error lets it.

        The summary is written in every case.

        Args:
          began_seconds: of `time.monotonic()` when the command started.

        Raises:
          ConfigError: in an exception group, for a row that can't be used.
          StageFailed: in an exception group, if a stage fails.
        """
        directory = self._directory
        directory.write_config(asdict(self._recipe))
        directory.cut({} if self._saved is None else self._saved.lengths)
        self._began_seconds = began_seconds - self._progress.wall_seconds
        with CompilationCounter() as compilations, closing(directory.open_metrics()) as metrics:
            summarise = partial(self._summarise, compilations)
            limit = self._recipe.waits.exit_deadline_seconds
            with summarised(
                directory, summarise, self._waits.describe, exit_deadline_seconds=limit
            ) as forced:
                await self._run_stages(metrics, compilations, forced)

    @property
    def left_a_thread(self) -> bool:
        """Whether a thread that hung was given up, and may still be in foreign code."""
        return self._device.abandoned or self._reader.abandoned

    async def _run_stages(
        self, metrics: Sink, compilations: CompilationCounter, forced: ForcedEnd
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forced.arm_when_cancelled)
            nursery.start_soon(stop_on_signal, self._stop, self._view.close)
            nursery.start_soon(describe_on_signal, self._waits.describe, self._view.note)
            nursery.start_soon(guard_loop, BLOCKED_SECONDS)
            nursery.start_soon(self._parts.processes.watch)
            await nursery.start(self._device.serve)
            await nursery.start(self._reader.serve)
            self._view.phase("compiling")
            what = "making the learner and its programs"
            with self._within("waits.prepare_deadline_seconds", "learner", what):
                replica = await self._device.run(self._prepare)
            compilations.mark()
            limit = self._recipe.stall_after_seconds
            nursery.start_soon(watch, lambda: self._waits.moved, limit, self._waits.describe)
            await self._run_phases(replica, metrics)
            nursery.cancel_scope.cancel()

    async def _run_phases(self, replica: OfflineReplica, metrics: Sink) -> None:
        await self._evaluate(replica, metrics)
        try:
            if self.interrupted_by is None:
                await self._learn(replica, metrics)
        except* ConfigError:  # a row that can't be used; hours may have been learnt before
            await self._end(replica, early=True)
            if self._recipe.checkpoint.every:
                self._view.note(
                    "what was learnt so far is saved; to go on without such rows: headrace resume "
                    f"{self._directory.path} --data.unusable skip --data.too-long skip"
                )
            raise
        await self._end(replica, early=self.interrupted_by is not None)

    # The phases.

    def _prepare(self) -> OfflineReplica:
        """Make the learner and compile its programs, on the device thread."""
        parts = self._parts
        replica = OfflineReplica(self._recipe, parts, self._saver)
        # Let go of the pretrained weights, which the learner has now.
        self._parts = replace(parts, policy=without_params(parts.policy), teacher=None)
        return replica

    async def _learn(self, replica: OfflineReplica, metrics: Sink) -> None:
        """Take all updates, reading one batch ahead."""
        self._view.phase("training")
        send, receive = trio.open_memory_channel[Read](0)
        with receive:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, send)
                while (lesson := await self._next_lesson(receive)) is not None:
                    await self._update(replica, lesson, metrics)
                    await self._evaluate(replica, metrics)
                    every = self._recipe.checkpoint.every
                    if every and self._progress.updates % every == 0:
                        await self._keep(replica)
                nursery.cancel_scope.cancel()
        done, steps = self._progress.updates, self._parts.steps
        if done < steps and self.interrupted_by is None:
            with stage("data"):
                raise PipelineStalled(f"the rows ended after {done} of {steps} updates")

    async def _next_lesson(self, receive: trio.MemoryReceiveChannel[Read]) -> Lesson | None:
        """Wait for the rows of the next update; None: there is none, or a signal came."""
        if self.interrupted_by is not None:
            return None
        what = f"the rows of update {self._progress.updates + 1}"
        with (
            self._within("waits.batch_deadline_seconds", "data", what),
            suppress(trio.EndOfChannel),
            trio.CancelScope() as self._reading,
        ):
            return (await receive.receive()).unwrap()
        return None

    async def _read(self, send: trio.MemorySendChannel[Read]) -> None:
        """Read one batch after the other; what goes wrong is sent in the place of a batch.

        So an update that has begun is taken and counted, also where the next row can't be used.
        """
        done = self._progress.updates
        reads = lessons(self._recipe, self._parts, self._position, done=done)
        with send:
            for _ in range(done, self._parts.steps):
                await send.send(await self._reader.run(partial(next, reads)))

    async def _update(self, replica: OfflineReplica, lesson: Lesson, metrics: Sink) -> None:
        began = replica.learner.busy_seconds
        what = f"update {self._progress.updates + 1}"
        with self._within("waits.update_deadline_seconds", "learner", what):
            numbers = await self._device.run(partial(replica.update, *lesson.packed))
            self._progress = self._progress.updated(numbers, lesson.examples, lesson.skipped)
            self._position = lesson.position
        seconds = replica.learner.busy_seconds - began
        record = {
            "step": self._progress.updates,
            "epoch": lesson.epochs,
            **numbers,
            "rows": lesson.examples,
            "rows_skipped": self._progress.rows_skipped,
            "tokens_per_second": lesson.tokens / max(seconds, 1e-9),
        }
        with stage("observe"):
            record["alarms"] = self._watch.count(record)
            metrics.write(record)
            self._view.step(record)

    async def _evaluate(self, replica: OfflineReplica, metrics: Sink) -> None:
        """Measure what is held out, if anything is and it is time for it."""
        step, skipped = self._progress.updates, 0
        if not self._is_time_to_evaluate() or self.interrupted_by is not None:
            return

        def batches() -> Iterator[Packed]:
            nonlocal skipped
            for taken in held_out_examples(self._recipe, self._parts):
                skipped += taken.skipped
                if self.interrupted_by is not None:
                    return
                if taken.examples:
                    yield self._parts.pack(taken.examples)

        what = f"held-out rows after {step} updates"
        with self._within("evaluate.deadline_seconds", "evaluate", what):
            found = await self._device.run(partial(replica.evaluate, batches()))
            if self.interrupted_by is not None:
                return  # it saw a part of the rows only
            found |= {"rows_skipped": skipped}
            self._progress = self._progress.evaluated_by(found)
        with stage("observe"):
            metrics.write({"step": step} | {f"eval_{name}": each for name, each in found.items()})
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
            self._view.note(f"held out after {step} updates: {numbers}")

    def _is_time_to_evaluate(self) -> bool:
        step, every = self._progress.updates, self._recipe.evaluate.every
        due = step in (0, self._parts.steps) or (every > 0 and step % every == 0)
        return due and self._parts.held_out is not None and self._progress.evaluated != step

    async def _keep(self, replica: OfflineReplica) -> None:
        """Save a checkpoint, unless there is one of this moment."""
        updates, position = self._progress.updates, self._position
        if position is None or self._kept == updates:
            return
        seconds = time.monotonic() - self._began_seconds
        progress = replace(self._progress, wall_seconds=seconds)

        def save() -> None:
            lengths = self._directory.lengths()
            self._saver.save(replica.copy_state(), progress, position=position, lengths=lengths)

        what = f"saving after {updates} updates"
        with self._within("waits.save_deadline_seconds", "checkpoint", what):
            await self._device.run(save)
        self._kept = updates

    async def _end(self, replica: OfflineReplica, *, early: bool) -> None:
        """Save what has been learnt; an early end leaves the policy of an end before."""
        if self._recipe.checkpoint.every:
            await self._keep(replica)
        outdated = early and self._directory.has_finished

        def save() -> None:
            self._params_sha256 = replica.fingerprint()
            if self._recipe.run.save_policy and self._progress.updates > 0 and not outdated:
                replica.save(self._directory.path / POLICY_FOLDER)

        with self._within("waits.save_deadline_seconds", "learner", "saving the policy"):
            await self._device.run(save)

    # What goes on beside the phases, and what is told of the run.

    def _within(self, setting: str, name: str, what: str) -> AbstractContextManager[None]:
        """Wait within the deadline of a setting, `section.name`."""
        section, key = setting.split(".")
        deadline = getattr(getattr(self._recipe, section), key)
        return self._waits.on(name, what, deadline, setting=f"--{setting.replace('_', '-')}")

    def _stop(self, number: signal.Signals) -> None:
        self.interrupted_by = number
        self._view.note(f"{number.name}: stopping after this update (again: at once)")
        self._reading.cancel()

    def _summarise(self, compilations: CompilationCounter) -> dict[str, Any]:
        run = self._recipe.run
        return {
            **run.identity(steps=self._parts.steps, interrupted_by=self.interrupted_by),
            **self._progress.summary(),
            "wall_seconds": time.monotonic() - self._began_seconds,
            "params_sha256": self._params_sha256,
            "compilations_after_warmup": compilations.since_mark,
            "peak_rss_bytes": peak_rss_bytes(),
        }
