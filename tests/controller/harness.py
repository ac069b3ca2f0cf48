"""One run of the controller with fakes under a virtual clock, and the laws that it must keep."""

from dataclasses import replace

import trio
import trio.testing

from headrace.envs import Task
from headrace.pipeline.algorithms.advantages import group_relative
from headrace.pipeline.controller import Controller, ControllerConfig, Stages
from headrace.pipeline.errors import StageFailed
from headrace.pipeline.groups import ledger
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from tests.fakes.env import Books, FakeEnv, nothing
from tests.fakes.policy import FakePolicy

RENDERER = CharacterRenderer(TextConfig("0123456789"))
ROLLOUT = RolloutConfig(
    group_size=2, max_turns=3, max_turn_tokens=2, max_tokens=32, max_episodes=16,
    env_deadline_seconds=20.0, max_retries=0,
)  # fmt: skip
SCHEDULE = Schedule(batch_groups=2, max_mean_lag=1, max_lag=3)
LONG = 10_000.0  # seconds of the virtual clock


class Numbered:
    """Tasks 0, 1, 2, …"""

    def __init__(self):
        self.given = 0

    def next(self):
        self.given += 1
        return Task(str(self.given - 1))


class Run:
    """One run of the controller under the mock clock, and what was seen of it."""

    def __init__(
        self, *, policy=None, hook=nothing, schedule=SCHEDULE, rollout=ROLLOUT, steps=4,
        replies="1", config=None, evaluate_every=0, saved=None,
    ):  # fmt: skip
        self.saved = saved
        self.books = Books()
        self.reward = lambda task, seed: float(seed % 2)
        self.updates = []
        self.packed = []  # groups in each batch that was formed
        self.policy = policy or FakePolicy()
        self.hook = hook
        self.replies = replies
        self.schedule = schedule
        self.steps = steps
        self.config = config or ControllerConfig(group_failures=8)
        self.evaluate_every = evaluate_every
        self.stages = Stages(
            tasks=Numbered(),
            rollout=Rollout(self.make_env, RENDERER, self.policy.sample, rollout),
            pack=self.pack,
            learner=self.policy,
            publish=self.policy.publish,
            hold=self.policy.hold,
            load=self.policy.load,
        )
        self.controller = None
        self.seconds = 0.0

    def make_env(self):
        return FakeEnv(self.books, self.replies, self.hook, self.reward)

    def pack(self, groups, batch):
        self.packed.append(len(groups))
        return form_batch(
            groups,
            group_relative,
            batch=batch,
            group_size=self.stages.rollout.config.group_size,
            shape=(8, 8, 32),
            max_lag=self.schedule.max_lag if self.schedule.over_age == "mask" else None,
        )

    def on_update(self, update):
        self.updates.append(update)

    def replace(self, **stages):
        """Put other stages in; return the run."""
        self.stages = replace(self.stages, **stages)
        return self

    def set_rollout(self, **config):
        """Change settings of the rollout; return the run."""
        rollout = self.stages.rollout
        return self.replace(rollout=replace(rollout, config=replace(rollout.config, **config)))

    def set_sample(self, sample):
        """Put another sampler in; return the run."""
        return self.replace(rollout=replace(self.stages.rollout, sample=sample))

    async def main(self):
        """Make the controller and run it to its end, which `seconds` then is the time of."""
        self.controller = Controller(
            self.stages,
            self.schedule,
            self.config,
            steps=self.steps,
            seed=0,
            on_update=self.on_update,
            evaluate_every=self.evaluate_every,
            saved=self.saved,
        )
        try:
            await self.controller.run()
        finally:
            self.seconds = trio.current_time()

    def go(self, *, deadline_seconds=LONG, beside=None):
        """Run to the end, or to the deadline; nothing may be left in either case.

        `beside(run, nursery)` is a task that runs at the same time.
        """

        async def main():
            with trio.fail_after(deadline_seconds):
                async with trio.open_nursery() as nursery:
                    if beside is not None:
                        nursery.start_soon(beside, self, nursery)
                    await self.main()
                    nursery.cancel_scope.cancel()

        try:
            trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        finally:
            self.check_nothing_is_left()
        return self

    def check_nothing_is_left(self):
        """Law 16; that no task is left, `trio.run` has seen to."""
        assert self.books.balanced
        assert self.books.had_time_to_close(self.rollout.close_deadline_seconds)
        assert self.policy.sampling == 0
        assert self.policy.holds == 0
        assert self.controller.flight.episodes == 0
        assert self.controller.evaluations.flight.episodes == 0
        counts = self.counts
        assert (counts.running, counts.ready) == (0, 0)

    @property
    def rollout(self):
        """The settings of the rollout."""
        return self.stages.rollout.config

    @property
    def counts(self):
        return ledger.counts(self.controller.ledger)

    @property
    def groups(self):
        """All groups in the updates made."""
        return [group for update in self.updates for group in update.groups]


def check_laws(run: Run):
    """Laws 3, 4 and 6 on what came out of a whole run, by arithmetic of its own."""
    size = run.schedule.batch_groups
    assert not run.policy.wrong_versions
    assert [update.batch for update in run.updates] == list(range(run.steps))
    assert len({group.index for group in run.groups}) == run.steps * size
    lags = [
        update.batch - min(t.policy_versions[t.loss_mask].min() for t in group.trajectories)
        for update in run.updates
        for group in update.groups
    ]
    assert max(lags) <= run.schedule.max_lag
    assert sum(lags) <= run.schedule.max_mean_lag * size * max(0, run.steps - 1)
    assert min(lags) >= 0
    members = run.stages.rollout.config.group_size
    assert all(len(group.trajectories) == members for group in run.groups)
    assert run.counts.in_batch == 0
    assert run.counts.admitted == run.counts.consumed + sum(run.counts.dropped.values())
    assert run.counts.lag_max == max(lags)


def leaves(error):
    """The errors of a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def failure_of(run: Run, *, deadline_seconds=LONG) -> StageFailed:
    """Run; return the error that ended it, of a stage that may have failed repeatedly at once."""
    try:
        run.go(deadline_seconds=deadline_seconds)
    except BaseExceptionGroup as error:
        failures = leaves(error)
        assert {type(failure) for failure in failures} == {StageFailed}, failures
        assert len({failure.stage for failure in failures}) == 1, failures
        return failures[0]
    raise AssertionError("the run didn't fail")
