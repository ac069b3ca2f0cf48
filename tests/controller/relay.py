"""One run in several processes: each is killed or stopped, and the next goes on."""

import json
import random
from dataclasses import dataclass, replace
from functools import partial

import trio

from headrace.envs import Task
from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.controller_state import Saves, state_from
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import LONG, ROLLOUT, Run, leaves
from tests.fakes.policy import FakePolicy


@dataclass(frozen=True)
class Kept:
    """A checkpoint: what a process leaves for the next one."""

    table: str
    content: bytes
    given: int
    updates: int


class Relay:
    """The processes share nothing but the last checkpoint, the seed, and the updates' records.

    Attributes:
      updates: as the file of metrics has them: those since a checkpoint go with their process.
      runs: one for each process.
    """

    def __init__(self, seed, schedule, *, steps=5, every=1, rollout=ROLLOUT, hook=None):
        """Args:
        hook: `hook(rng, call, task)`, awaited in each call of an environment.
        """
        self.rng = random.Random(seed)
        self.schedule = schedule
        self.steps = steps
        self.every = every
        self.rollout = rollout
        self.hook = hook
        self.kept = None
        self.updates = []
        self.published = {}  # after each update
        self.runs = []
        self.evaluate_every = 0
        self.evaluated = []  # versions

    def go(self, cuts=()):
        """Run until each of the cuts, `(seconds, how)`, and then to the end.

        How: "kill", "stop" in order, or "full", a disk on which nothing can be saved then.
        """
        for seconds, how in cuts:
            self.one_process(seconds, how)
        self.one_process(LONG, "kill")
        return self

    def one_process(self, seconds, how):
        run = self.make_run(seconds if how == "full" else LONG)
        self.runs.append(run)

        async def stop(run, nursery):
            await trio.sleep(seconds)
            run.controller.stop()

        try:
            if how == "kill":
                run.go(deadline_seconds=seconds)
            else:
                run.go(beside=stop if how == "stop" else None)
        except (trio.TooSlowError, BaseExceptionGroup) as error:
            if how == "full":
                stages = [leaf.stage for leaf in leaves(error)]
                assert stages == ["checkpoint"]
            saved = 0 if self.kept is None else self.kept.updates
            self.updates = [update for update in self.updates if update.batch < saved]
        else:
            assert self.kept.updates == run.controller.ledger.committed
        assert not run.policy.wrong_versions

    def make_run(self, full_after=LONG):
        run = Run(
            policy=FakePolicy(
                sample_seconds=lambda request: self.rng.expovariate(1.0),
                update_seconds=self.rng.choice([0.0, 1.0, 20.0]),
                publish_seconds=self.rng.choice([0.0, 1.0]),
                rows=self.rng.choice([3, 64]),
            ),
            hook=self.at_env,
            schedule=self.schedule,
            rollout=replace(self.rollout, max_episodes=self.rng.choice([4, 32])),
            config=ControllerConfig(self.rng.choice(["auto", "fixed"]), group_failures=10**6),
            steps=self.steps,
            evaluate_every=self.evaluate_every,
        )
        run.on_update = partial(self.on_update, run)
        if self.kept is not None:
            run.policy.version = -1  # it has no weights yet
            run.stages.tasks.given = self.kept.given
            run.saved = state_from(
                json.loads(self.kept.table),
                self.kept.content,
                schedule=self.schedule,
                rollout=run.rollout,
                find=Task,
            )

        async def save(state):
            table, content = state.table()
            kept = Kept(json.dumps(table), content, run.stages.tasks.given, state.ledger.committed)
            await trio.sleep(self.rng.choice([0.0, 3.0]))
            if trio.current_time() > full_after:
                raise OSError("no space left")
            assert all(run.policy.held[version] for version in state.held)
            self.kept = kept

        async def evaluate(version, flight):
            self.evaluated.append(version)
            await trio.sleep(500.0)

        return run.replace(saves=Saves(self.every, save), evaluate=evaluate)

    def on_update(self, run, update):
        self.updates.append(update)
        self.published[update.batch] = run.controller.ledger.published

    async def at_env(self, call, task, step):
        await trio.sleep(self.rng.choice([0.0, 0.5, 1.0, self.rng.paretovariate(1.2)]))
        if self.hook is not None:
            await self.hook(self.rng, call, task)


def lockstep(eta, every=1, *, batch_groups=2):
    return Schedule(
        batch_groups=batch_groups,
        max_mean_lag=eta,
        max_lag=eta,
        publish_every=every,
        deterministic=True,
    )


def transcript(*runs, updates=None):
    """All that training sees, and the keys that made it, of one run in several processes."""
    requests = [request for run in runs for request in run.policy.requests]
    keys = {(request.priority, request.key) for request in requests}
    return [
        (
            update.batch,
            group.index,
            group.task.id,
            [
                (t.tokens.tolist(), t.policy_versions.tolist(), t.reward)
                for t in group.trajectories
            ],
            sorted(key for index, key in keys if index == group.index),
        )
        for update in (runs[-1].updates if updates is None else updates)
        for group in update.groups
    ]
