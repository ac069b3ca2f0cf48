"""Runs whose every latency, fault and setting is drawn, so that a failure shrinks to a few."""

import random
from dataclasses import dataclass, replace

import trio
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.controller import ControllerConfig
from headrace.pipeline.evaluate import EvaluateConfig, evaluate, for_evaluation
from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.rollout.config import RolloutConfig
from tests.controller.harness import Run
from tests.fakes.env import Books, FakeEnv
from tests.fakes.policy import FakePolicy

DEADLINE = 20_000.0  # virtual seconds, of a whole run
MOST_DRAWS = 100  # what follows comes from a drawn seed, without faults, so that each run ends
CALM = (*[0.0] * 6, *[0.3] * 10, 1.0, 1.0, 9.0, 14.5)
HEAVY = (*[0.0] * 6, *[0.3] * 6, 1.0, *[9.0] * 3, *[14.5] * 4)  # most episodes have a long one
SHORT = (*[0.0] * 4, *[0.3] * 14, 2.5, 14.5)  # of the learner and of publishes
FAULTS = ("raise", "hang", "raise when cancelled", "late when cancelled", "escape")
FATAL = {"update": "learner", "publish": "weight_sync", "acknowledge": "weight_sync"}
EVALUATE = EvaluateConfig(tasks=3, max_episodes=2, deadline_seconds=25.0)


class Planned(Exception):
    """A fault that the plan holds."""


async def escape():
    """Let a `Cancelled` escape from its scope, as mistakes with async generators do."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            stray = error
    raise stray


class Plan:
    """Draws what happens at each await, one number for each: the smaller, the simpler."""

    def __init__(self, data):
        self.fatal = None  # the call of a stage that raises, and the time that it does
        self._data = data
        self._left = MOST_DRAWS
        # So many latencies to the faults: many faults, and no group lives; none, and none dies.
        self._repeats = data.draw(st.sampled_from([50, 10, 1]), label="latencies to a fault")
        self._latencies = data.draw(st.sampled_from([CALM, HEAVY]), label="latencies")
        self._later = random.Random(data.draw(st.integers(0, 2**16), label="later latencies"))

    async def wait(self, call, latencies, faults=FAULTS):
        """Wait, raise, hang or misbehave when cancelled, as drawn."""
        drawn = self._draw(call, latencies, faults)
        match drawn:
            case "raise":
                raise Planned(call)
            case "hang":
                await trio.sleep_forever()
            case "raise when cancelled":
                await _raise_when_cancelled(call)
            case "late when cancelled":
                await _late_when_cancelled()
            case "escape":
                await escape()
            case _:
                await trio.sleep(drawn)

    def _draw(self, call, latencies, faults):
        self._left -= 1
        if self._left < 0:
            return self._later.choice(latencies)
        choices = (*latencies * self._repeats, *faults)
        try:
            number = self._data.draw(st.integers(0, len(choices) - 1), label=call)
        except BaseException:
            self._left = 0  # hypothesis has seen enough; draw no more on the way out
            raise
        return choices[number]

    async def at_env(self, call, task, step):
        await self.wait(f"{call} {task.id if task else ''}".strip(), self._latencies)

    async def at_policy(self, call, detail):
        if self.fatal is not None and self.fatal[0] == call:
            self.fatal = (call, self.fatal[1] - 1)
            if self.fatal[1] < 0:
                raise Planned(f"fatal {call}")
        if call in ("request", "token"):
            await self.wait(call, self._latencies)
        else:
            await self.wait(call, SHORT, faults=())


async def _raise_when_cancelled(call):
    try:
        await trio.sleep(11.0)
    except trio.Cancelled:
        raise Planned(f"{call} when cancelled") from None


async def _late_when_cancelled():
    try:
        await trio.sleep(11.0)
    except trio.Cancelled:
        with trio.CancelScope(shield=True):
            await trio.sleep(3.0)
        raise


@st.composite
def schedules(draw, deterministic):
    every = draw(st.sampled_from([1, 1, 1, 2, 3]), label="publish_every")
    eta = every - 1 + draw(st.integers(0, 2), label="max_mean_lag - least")
    return Schedule(
        batch_groups=draw(st.sampled_from([1, 1, 2, 3]), label="batch_groups"),
        max_mean_lag=eta,
        max_lag=eta + draw(st.sampled_from([0, 0, 0, 1, 3]), label="max_lag - mean"),
        publish_every=every,
        max_reissues=draw(st.integers(0, 2), label="max_reissues"),
        equal_rewards="keep" if deterministic else draw(st.sampled_from(["keep", "drop"])),
        deterministic=deterministic,
        over_age=draw(st.sampled_from(["drop", "drop", "mask"])),
    )


@st.composite
def rollouts(draw, least):
    size = draw(st.sampled_from([2, least, 3]), label="group_size")
    return RolloutConfig(
        group_size=size,
        max_turns=2,
        max_turn_tokens=2,
        max_tokens=32,
        max_episodes=size * draw(st.integers(1, 5), label="max_episodes / group_size"),
        env_deadline_seconds=15.0,
        sample_deadline_seconds=30.0,
        close_deadline_seconds=13.0,
        failure=draw(st.sampled_from(["retry", "survivors", "drop"])),
        max_retries=draw(st.integers(0, 2), label="max_retries"),
        min_group_size=draw(st.integers(1, size), label="min_group_size"),
    )


@dataclass
class Evaluated:
    """One evaluation during training."""

    version: int
    running: bool = True
    found: object = None


class DrawnRun(Run):
    """A run of drawn settings by a plan, which is drawn too if none is given.

    There are evaluations among training.
    """

    def __init__(self, data, *, deterministic=False, plan=None):
        self.plan = plan or Plan(data)
        schedule = data.draw(schedules(deterministic))
        # Alone, a member's reward always equals that of its group.
        rollout = data.draw(rollouts(2 if schedule.equal_rewards == "drop" else 1))
        rows = data.draw(st.sampled_from([64, 5]), label="rows")
        concurrency = data.draw(st.sampled_from(["fixed", "auto"]))
        super().__init__(
            policy=FakePolicy(
                sample_seconds=lambda request: 0.0,
                update_seconds=0.0,
                hook=self.plan.at_policy,
                rows=rows,
            ),
            hook=self.plan.at_env,
            schedule=schedule,
            rollout=rollout,
            steps=data.draw(st.sampled_from([4, 1, 12]), label="steps"),
            replies="1" * data.draw(st.integers(0, 1), label="replies"),
            config=ControllerConfig(concurrency=concurrency, group_failures=10**6),
            evaluate_every=data.draw(st.integers(0, 2), label="evaluate_every"),
        )
        self.evaluation_books = Books()
        self.evaluations = []
        self.replace(evaluate=self.evaluate)

    async def evaluate(self, version, flight):
        assert not any(evaluation.running for evaluation in self.evaluations)
        evaluated = Evaluated(version)
        self.evaluations.append(evaluated)
        rollout = replace(self.stages.rollout, make_env=self.make_evaluation_env)
        try:
            evaluated.found = await evaluate(
                for_evaluation(rollout, EVALUATE, training=True),
                [Task(f"evaluation {number}") for number in range(EVALUATE.tasks)],
                seed=0,
                deadline_seconds=EVALUATE.deadline_seconds,
                version=version,
                flight=flight,
            )
        finally:
            evaluated.running = False

    def make_evaluation_env(self):
        return FakeEnv(self.evaluation_books, "", self.plan.at_env, self.reward)
