"""Runs whose every latency, fault and setting is drawn, so that a failure shrinks to a few."""

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
MOST_DRAWS = 120  # what follows is quick and without faults, so that each run ends
LATENCIES = (0.0, 0.0, 0.3, 1.0, 1.0, 2.5, 7.0, 19.0, 29.5)
FAULTS = ("raise", "hang", "raise when cancelled", "late when cancelled")
EVALUATE = EvaluateConfig(tasks=3, max_episodes=2, deadline_seconds=60.0)


class Planned(Exception):
    """A fault that the plan holds."""


class Plan:
    """Draws what happens at each await, one number for each: the smaller, the simpler."""

    def __init__(self, data):
        self._data = data
        self._left = MOST_DRAWS

    async def wait(self, call, *, faults=FAULTS):
        """Wait, raise, hang or misbehave when cancelled, as drawn."""
        choices = (*LATENCIES, *faults)
        self._left -= 1
        drawn = choices[self._draw(call, len(choices) - 1) if self._left >= 0 else 3]
        match drawn:
            case "raise":
                raise Planned(call)
            case "hang":
                await trio.sleep_forever()
            case "raise when cancelled":
                await _raise_when_cancelled(call)
            case "late when cancelled":
                await _late_when_cancelled()
            case _:
                await trio.sleep(drawn)

    def _draw(self, call, most):
        try:
            return self._data.draw(st.integers(0, most), label=call)
        except BaseException:
            self._left = 0  # hypothesis has seen enough; draw no more on the way out
            raise

    async def at_env(self, call, task, step):
        await self.wait(f"{call} {task.id if task else ''}".strip())

    async def at_policy(self, call, detail):
        faults = FAULTS if call in ("request", "token") else ()
        await self.wait(call, faults=faults)


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
    every = draw(st.integers(1, 3), label="publish_every")
    eta = draw(st.integers(every - 1, 3), label="max_mean_lag")
    return Schedule(
        batch_groups=draw(st.integers(1, 3), label="batch_groups"),
        max_mean_lag=eta,
        max_lag=eta + draw(st.integers(0, 2), label="max_lag - max_mean_lag"),
        publish_every=every,
        max_reissues=draw(st.integers(0, 2), label="max_reissues"),
        equal_rewards="keep" if deterministic else draw(st.sampled_from(["keep", "drop"])),
        deterministic=deterministic,
        over_age=draw(st.sampled_from(["drop", "mask"])),
    )


@st.composite
def rollouts(draw, least):
    size = draw(st.integers(least, 3), label="group_size")
    return RolloutConfig(
        group_size=size,
        max_turns=2,
        max_turn_tokens=2,
        max_tokens=32,
        max_episodes=size * draw(st.integers(1, 5), label="max_episodes / group_size"),
        env_deadline_seconds=30.0,
        sample_deadline_seconds=50.0,
        close_deadline_seconds=12.0,
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
    """A run by a plan, with an evaluation among training."""

    def __init__(self, data, *, deterministic=False):
        self.plan = Plan(data)
        schedule = data.draw(schedules(deterministic))
        # Alone, a member's reward always equals that of its group.
        rollout = data.draw(rollouts(2 if schedule.equal_rewards == "drop" else 1))
        rows = data.draw(st.sampled_from([64, 3, 1]), label="rows")
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
            steps=data.draw(st.integers(1, 4), label="steps"),
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
