"""Runs the real controller with simulated parts, and reports.

The only module here that knows the controller. Its order is that of a real run.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from ...envs.base import Task
from ..controller import Controller
from ..evaluate import evaluate, for_evaluation
from ..groups import ledger
from ..groups.batching import BatchStatistics
from ..rollout.episode import Rollout
from ..rollout.group import Flight
from ..stages import Stages, Update
from ..types import Completion, SampleRequest, TrainBatch, TrajectoryGroup
from .account import (
    CAPPED,
    WAITING,
    GenerationSeconds,
    Ideal,
    LearnerWatch,
    Pools,
    UseWatch,
)
from .environment import (
    CountingRenderer,
    NumberedTasks,
    SimulatedEnv,
    World,
    announced_length,
    announced_serial,
)
from .episodes import Episode, EpisodeBook, slot_seconds
from .learner import SimulatedLearner, make_pack
from .report import Measured, Report, make_report
from .sampler import SimulatedSampler
from .scenarios import Simulation
from .timers import Timers, run_virtually


def simulate(simulation: Simulation) -> Report:
    """Run a simulation and report.

    Equal simulations give equal reports, except for `host_microseconds_per_turn`.

    Raises:
      StageFailed: in an exception group, where the run fails as a real one would.
    """

    async def main(timers: Timers) -> _Run:
        run = _Run(simulation, timers)
        await run.go()
        return run

    began = time.process_time()
    run = run_virtually(main, seed=simulation.seed)
    host_seconds = time.process_time() - began
    return make_report(simulation, run.measured(), host_seconds=host_seconds)


class _Run:
    """The parts of one run, and who watches them."""

    def __init__(self, simulation: Simulation, timers: Timers):
        costs, rollout = simulation.sampler, simulation.rollout
        self._simulation = simulation
        self._timers = timers
        self._slots = costs.rows or rollout.max_episodes
        self._in_rows = costs.rows is not None
        self._asked: dict[SampleRequest, Episode] = {}
        self._book = EpisodeBook(
            timers.current_time, slot_is_row=self._in_rows, run_ended=self._has_ended
        )
        self._sampler = SimulatedSampler(
            costs,
            timers,
            turn_tokens=announced_length,
            context_tokens=rollout.max_tokens,
            why_idle=self._why_idle,
            on_row_seconds=self._row_given_back,
        )
        self._idle_seconds: defaultdict[str, float] = defaultdict(float)
        self._learning = LearnerWatch()
        self._learner = SimulatedLearner(simulation.learner, timers, self._learning.updated)
        self._publishing = False
        self._used = UseWatch(costs, self._most_lag())
        self._pack = make_pack(simulation)
        self._controller = Controller(
            self._stages(),
            simulation.schedule,
            simulation.controller,
            steps=simulation.steps,
            seed=simulation.seed,
            on_update=self._on_update,
            evaluate_every=simulation.evaluate.every,
        )
        self._ledger_before = self._controller.ledger
        timers.on_advance(self._advance)

    async def go(self) -> None:
        """Run to the last update."""
        await self._publish(0)
        await self._controller.run()
        self._sampler.close()
        before = self._ledger_before
        outstanding = {group.index for group in (*before.running, *before.ready)}
        self._book.end(outstanding, first_later=before.admitted)

    def measured(self) -> Measured:
        """Return what was measured; to be called once, after the run."""
        self._used.add_up()
        self._book.plan(self._simulation.rollout, self._simulation.sampler)
        seconds, book, engine = self._timers.now, self._book, self._sampler.engine
        generation = GenerationSeconds(
            slots=self._slots,
            held={fate.value: spent for fate, spent in slot_seconds(book.decided).items()},
            idle=engine.idle_seconds if self._in_rows else self._idle_seconds,
            recompute=engine.recompute_seconds if self._in_rows else 0.0,
            sync=engine.pause_seconds * self._slots if self._in_rows else 0.0,
        )
        return Measured(
            seconds=seconds,
            pools=Pools(
                generation.shares(max(seconds, engine.clock) if self._in_rows else seconds),
                self._learning.shares(seconds),
                self._simulation.sampler_share,
            ),
            ideal=self._ideal(),
            book=book,
            used=self._used,
            preemptions=engine.preemptions,
        )

    def _ideal(self) -> Ideal:
        used = self._used
        return Ideal(
            sampler=used.costs.seconds(used.work, batch_rows=self._slots),
            environments=used.alone_seconds / self._simulation.rollout.max_episodes,
            learner=self._learning.useful,
            critical_path=used.longest_seconds,
        )

    def _stages(self) -> Stages:
        simulation = self._simulation
        world = World(simulation.workload, self._timers, self._book)
        make_env = partial(SimulatedEnv, world)
        self._rollout = Rollout(make_env, CountingRenderer(), self._sample, simulation.rollout)
        return Stages(
            tasks=NumberedTasks(),
            rollout=self._rollout,
            pack=self._pack_noted,
            learner=self._learner,
            publish=self._publish,
            hold=self._sampler.hold,
            load=self._sampler.load,
            evaluate=self._evaluate if simulation.evaluate.tasks else None,
        )

    # What the controller calls, and what is noted then.

    async def _sample(self, request: SampleRequest) -> Completion:
        episode = self._book.turn_asked(announced_serial(request.tokens), request.priority)
        if self._in_rows:
            self._asked[request] = episode
        completion = await self._sampler.sample(request)
        episode.waiting = False
        return completion

    def _row_given_back(self, request: SampleRequest, seconds: float) -> None:
        if self._in_rows:
            self._book.add_slot_seconds(self._asked.pop(request), seconds)

    def _pack_noted(
        self, groups: Sequence[TrajectoryGroup], batch: int
    ) -> tuple[TrainBatch, BatchStatistics]:
        packed, statistics = self._pack(groups, batch)
        self._learning.padding_share = statistics.padding_share
        return packed, statistics

    async def _publish(self, version: int) -> None:
        self._publishing = True
        await self._sampler.publish(None, version)
        self._publishing = False

    def _on_update(self, update: Update) -> None:
        for group in update.groups:
            self._book.use(group.index, self._used.note(group, update.batch))

    async def _evaluate(self, version: int, flight: Flight) -> None:
        config = self._simulation.evaluate
        await evaluate(
            for_evaluation(self._rollout, config, training=True),
            [Task(f"held out {number}") for number in range(config.tasks)],
            seed=self._simulation.seed,
            deadline_seconds=config.deadline_seconds,
            version=version,
            flight=flight,
        )

    # What is asked as time passes.

    def _advance(self, seconds: float) -> None:
        state = self._ledger_before = self._controller.ledger
        if not self._in_rows and (idle := self._slots - self._book.in_flight):
            self._idle_seconds[self._why_idle()] += idle * seconds
        if state.learner_waits:
            self._learning.starved += seconds
        elif self._publishing:
            self._learning.sync += seconds
        elif state.committed == self._simulation.steps:
            self._learning.evaluation += seconds

    def _why_idle(self) -> str:
        return WAITING if ledger.may_admit(self._controller.ledger) > 0 else CAPPED

    def _has_ended(self) -> bool:
        return self._controller.ledger.ended

    def _most_lag(self) -> int:
        schedule = self._simulation.schedule
        return schedule.max_lag if schedule.over_age == "mask" else self._simulation.steps
