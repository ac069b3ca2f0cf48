"""Evaluation: greedy, counted, and never the end of a run."""

from dataclasses import replace

import pytest
import trio
import trio.testing

from headrace.envs import Task
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.evaluate import EvaluateConfig, evaluate
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from tests.fakes.env import Books, FakeEnv, nothing
from tests.rollout.test_episode import RENDERER, Script, turn

TASKS = [Task(str(number)) for number in range(5)]


def run(hook=nothing, *, reward=lambda task, seed: float(task.id), tasks=TASKS, **config):
    books = Books()
    sample = Script(turn("1"))
    rollout = Rollout(
        lambda: FakeEnv(books, (), hook, reward),
        RENDERER,
        sample,
        RolloutConfig(group_size=2, max_episodes=2, env_deadline_seconds=50.0, **config),
    )

    async def main():
        return await evaluate(rollout, tasks, seed=0, deadline_seconds=90.0)

    found = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert books.balanced
    return found, sample.requests


def test_each_task_once_and_greedily():
    found, requests = run()
    assert found.episodes == 5
    assert found.failures == {}
    assert found.means == {"reward": 2.0, "success": 2.0}
    assert {request.temperature for request in requests} == {0.0}


def test_failures_are_counted_and_left_out_of_the_means():
    async def hook(call, task, step):
        if call == "step" and task.id == "4":
            raise OSError("flaky")

    found, _ = run(hook)
    assert found.episodes == 4
    assert found.failures == {"env_error": 1}
    assert found.means["reward"] == 1.5


def test_conformance_6_an_evaluation_that_hangs_ends_at_its_deadline():
    async def hook(call, task, step):
        if call == "step" and int(task.id) >= 2:
            await trio.sleep(49.0)

    found, _ = run(hook)
    assert found.episodes == 4  # two at a time: the last one would end after 98 s
    assert found.failures == {"cancelled": 1}


def test_without_tasks_or_without_survivors_there_are_no_means():
    async def hook(call, task, step):
        raise OSError("down")

    assert run(tasks=[])[0].means == {}
    found, _ = run(hook)
    assert (found.episodes, found.means, found.failures) == (0, {}, {"env_error": 5})


def test_impossible_numbers_are_refused():
    with pytest.raises(ConfigError, match=r"tasks must be >= 0, got -1"):
        EvaluateConfig(tasks=-1)
    with pytest.raises(ConfigError, match=r"deadline_seconds must be > 0 .* got 0"):
        replace(EvaluateConfig(), deadline_seconds=0.0)
