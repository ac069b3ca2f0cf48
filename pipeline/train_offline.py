"""The job of training without rollouts: from a recipe to a policy, a run directory, a summary.

The phases, in order: compile, measure, learn, measure, save. The next batch is read and packed on
a worker thread while the device learns from this one. A signal ends the run after the update of
that moment, a row that can't be used ends it at once; in both cases what has been learnt is
saved. The run's files are whole whenever it ends.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import trio

from .device_thread import DeviceThread
from .errors import ConfigError, stage
from .learner.fingerprint import fingerprint
from .learner.state import Params
from .models.adapted import adapted_model
from .models.model import decoder_model
from .observe.compilations import CompilationCounter
from .observe.metrics import peak_rss_bytes
from .observe.run_directory import RunDirectory
from .observe.sinks import Sink
from .observe.view import View
from .offline.assemble import (
    OfflineParts,
    Packed,
    held_out_examples,
    make_rule,
    row_stream,
    step_rows,
)
from .offline.config import OfflineRecipe
from .offline.learner import OfflineLearner
from .policy.record import Policy
from .policy.save import save_policy
from .policy.source import POLICY_FOLDER
from .policy.start import compile_final, starting_params, without_params
from .supervise import stop_on_signal

Finish = Callable[[Params], Policy]


class _Lesson(NamedTuple):
    """What one update learns from.

    Attributes:
      examples: rows of data in it.
      skipped: rows that were too long for it.
      tokens: all that the model reads, padding left out.
      epochs: passes over the rows so far.
    """

    packed: Packed
    examples: int
    skipped: int
    tokens: int
    epochs: float


class OfflineJob:
    """One run without rollouts: make it, await `run` once, then read `interrupted_by`."""

    def __init__(
        self, recipe: OfflineRecipe, parts: OfflineParts, directory: RunDirectory, view: View
    ) -> None:
        """Args:
        parts: from `assemble_offline(recipe)`.
        directory: a new one.
        """
        self._recipe = recipe
        self._parts = parts
        self._directory = directory
        self._view = view
        self._device = DeviceThread("headrace-learner")
        self._summary: dict[str, Any] = {"updates": 0, "rows": 0, "rows_skipped": 0, "tokens": 0}
        self._evaluations: dict[str, Mapping[str, float]] = {}
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
        # Without the directory, so that the file can be run again.
        run = replace(self._recipe.run, dir=None)
        directory.write_config(asdict(replace(self._recipe, run=run)))
        with CompilationCounter() as compilations, closing(directory.open_metrics()) as metrics:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stop_on_signal, self._stop, self._view.close)
                    await nursery.start(self._device.serve)
                    await self._run_phases(metrics, compilations)
                    nursery.cancel_scope.cancel()
            finally:
                directory.write_summary(
                    {
                        "recipe": run.name,
                        "steps": self._parts.steps,
                        "seed": run.seed,
                        "interrupted_by": self.interrupted_by and self.interrupted_by.name,
                        "wall_seconds": time.monotonic() - began_seconds,
                        **self._summary,
                        "evaluations": self._evaluations,
                        "compilations_after_warmup": compilations.since_mark,
                        "peak_rss_bytes": peak_rss_bytes(),
                    }
                )

    def _stop(self, number: signal.Signals) -> None:
        self.interrupted_by = number
        self._view.note(f"{number.name}: stopping after this update (again: at once)")

    async def _run_phases(self, metrics: Sink, compilations: CompilationCounter) -> None:
        self._view.phase("compiling")
        with stage("learner"):
            learner, finish = await self._device.run(self._prepare)
        compilations.mark()
        await self._evaluate(learner, metrics, 0)
        try:
            if self.interrupted_by is None:
                await self._learn(learner, metrics)
        except* ConfigError:  # a row that can't be used; hours may have been learnt before
            await self._save(finish, learner)
            raise
        await self._save(finish, learner)

    def _prepare(self) -> tuple[OfflineLearner, Finish]:
        """Make the learner and compile its programs, on the device thread."""
        recipe, parts = self._recipe, self._parts
        policy, lora, teacher = parts.policy, recipe.lora, parts.teacher
        decoder = decoder_model(policy.config, policy.vocab_size, remat=recipe.policy.remat)
        model = adapted_model(decoder, lora) if lora.on else decoder
        start = starting_params(policy, decoder, lora, seed=recipe.run.seed)
        policy = without_params(policy)
        self._parts = replace(parts, policy=policy, teacher=None)
        learner = OfflineLearner(
            start.trained,
            make_rule(recipe, model.forward, teacher, parts),
            frozen=start.frozen,
            teacher=None if teacher is None else teacher.params,
        )
        learner.compile()
        return learner, compile_final(policy, start, lora)

    async def _learn(self, learner: OfflineLearner, metrics: Sink) -> None:
        """Take all updates, reading one batch ahead."""
        self._view.phase("training")
        send, receive = trio.open_memory_channel[_Lesson](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, send)
            async with receive:
                step = 0
                async for lesson in receive:
                    step += 1
                    await self._update(learner, lesson, metrics, step)
                    every = self._recipe.evaluate.every
                    if self.interrupted_by is not None:
                        break
                    if step == self._parts.steps or (every and step % every == 0):
                        await self._evaluate(learner, metrics, step)
                    if step == self._parts.steps:
                        break
            nursery.cancel_scope.cancel()

    async def _read(self, send: trio.MemorySendChannel[_Lesson]) -> None:
        stream = row_stream(self._recipe, self._parts)
        reader, pack = self._parts.reader, self._parts.pack

        def next_lesson(count: int) -> _Lesson:
            taken = reader.take(stream.take(count))
            packed = pack(taken.examples)
            tokens = int(np.count_nonzero(packed[0].rows.segment_ids))
            return _Lesson(packed, len(taken.examples), taken.skipped, tokens, stream.epochs)

        async with send:
            for step in range(self._parts.steps):
                count = step_rows(self._recipe, self._parts, step)
                with stage("data"):
                    lesson = await trio.to_thread.run_sync(next_lesson, count)
                await send.send(lesson)

    async def _update(
        self, learner: OfflineLearner, lesson: _Lesson, metrics: Sink, step: int
    ) -> None:
        began = learner.busy_seconds
        with stage("learner"):
            numbers = await self._device.run(partial(learner.update, *lesson.packed))
        seconds = learner.busy_seconds - began
        summary = self._summary
        summary["updates"] = step
        summary["rows"] += lesson.examples
        summary["rows_skipped"] += lesson.skipped
        summary["tokens"] += int(numbers["tokens"])
        summary.setdefault("loss_first", numbers["loss"])
        summary["loss_last"] = numbers["loss"]
        record = {
            "step": step,
            "epoch": lesson.epochs,
            **numbers,
            "rows": lesson.examples,
            "rows_skipped": summary["rows_skipped"],
            "tokens_per_second": lesson.tokens / max(seconds, 1e-9),
        }
        metrics.write(record)
        self._view.step(record)

    async def _evaluate(self, learner: OfflineLearner, metrics: Sink, step: int) -> None:
        """Measure what is held out, if anything is."""
        if self._parts.held_out is None:
            return
        skipped = 0

        def batches() -> Iterator[Packed]:
            nonlocal skipped
            for taken in held_out_examples(self._recipe, self._parts):
                skipped += taken.skipped
                if self.interrupted_by is not None:
                    return
                if taken.examples:
                    yield self._parts.pack(taken.examples)

        with stage("evaluate"):
            found = await self._device.run(partial(learner.evaluate, batches()))
        if self.interrupted_by is not None:
            return  # it saw a part of the rows only
        found |= {"rows_skipped": skipped}
        self._evaluations["after" if step else "before"] = found
        metrics.write({"step": step} | {f"eval_{name}": each for name, each in found.items()})
        numbers = "  ".join(f"{name} {value:.4g}" for name, value in found.items())
        self._view.note(f"held out after {step} updates: {numbers}")

    async def _save(self, finish: Finish, learner: OfflineLearner) -> None:
        def save() -> None:
            self._summary["params_sha256"] = fingerprint(learner.params)
            if self._recipe.run.save_policy:
                save_policy(finish(learner.params), self._directory.path / POLICY_FOLDER)

        with stage("learner"):
            await self._device.run(save)
