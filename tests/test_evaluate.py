"""An evaluation measures one version with its own settings, counts what fails, and ends."""

from dataclasses import replace

import pytest
import trio
import trio.testing

from headrace.envs import Reward, Task
from headrace.envs.rewards import Scorer
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.evaluate import EvaluateConfig, evaluate, for_evaluation
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from headrace.pipeline.rollout.group import Flight, identify
from tests.fakes.env import Books, FakeEnv, nothing
from tests.rollout.test_episode import RENDERER, Script, turn

TASKS = [Task(str(number)) for number in range(5)]
TRAINING = RolloutConfig(group_size=4, max_episodes=8, env_deadline_seconds=50.0, temperature=0.9)

CONFIG = EvaluateConfig()


class World:
    """What an evaluation works with, and what it asked of the sampler."""

    def __init__(self, hook=nothing, reward=lambda task, seed: float(task.id)):
        self.books = Books()
        self.sample = Script(turn("1"))
        self.rollout = Rollout(
            lambda: FakeEnv(self.books, (), hook, reward), RENDERER, self.sample, TRAINING
        )

    def evaluate(self, tasks=TASKS, *, config=CONFIG, training=False, **more):
        async def main():
            rollout = for_evaluation(self.rollout, config, training=training)
            return await evaluate(
                rollout, tasks, seed=0, deadline_seconds=config.deadline_seconds, **more
            )

        found = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        assert self.books.balanced
        return found


def test_each_task_once_with_the_evaluations_own_temperature():
    world = World()
    found = world.evaluate(config=EvaluateConfig(temperature=0.3))
    assert found.episodes == 5
    assert found.failures == {}
    assert found.means == {"reward": 2.0, "success": 2.0}
    assert [request.temperature for request in world.sample.requests] == [0.3] * 5


def test_it_has_a_run_s_rewards_but_for_those_that_compare_members():
    async def half(episode):
        return 0.5

    async def compared(episodes):
        raise AssertionError("there is no group")

    world = World()
    rewards = [
        Reward("half", half, weight=2.0, in_loop=True),
        Reward("compared", compared, of="group", in_loop=True),
    ]
    world.rollout = replace(world.rollout, scorer=Scorer(rewards))
    means = world.evaluate().means
    assert means == {"reward": 3.0, "success": 2.0, "reward_env": 2.0, "reward_half": 0.5}


def test_by_default_it_is_greedy():
    world = World()
    world.evaluate()
    assert {request.temperature for request in world.sample.requests} == {0.0}


@pytest.mark.parametrize("version", [None, 3])
def test_all_requests_are_of_the_version_that_is_measured_and_go_before_training(version):
    world = World()
    world.evaluate(version=version)
    training = identify(0, index=0, member=0).priority
    assert {request.version for request in world.sample.requests} == {version}
    assert all(request.priority < training for request in world.sample.requests)


def test_conformance_28_its_keys_are_those_of_no_group_and_always_the_same():
    one, other = World(), World()
    one.evaluate(version=1)
    other.evaluate(version=2)
    keys = [request.key for request in one.sample.requests]
    assert len(set(keys)) == 5
    assert set(keys) == {request.key for request in other.sample.requests}
    assert not set(keys) & {identify(0, index=index, member=0).key for index in range(5)}


@pytest.mark.parametrize(("training", "most"), [(False, 8), (True, 3)])
def test_during_training_it_is_a_few_episodes_among_many(training, most):
    async def hook(call, task, step):
        highest.append(world.books.opened - world.books.closed)
        await trio.sleep(1.0)

    highest = []
    world = World(hook)
    tasks = [Task(str(number)) for number in range(20)]
    world.evaluate(tasks, config=EvaluateConfig(max_episodes=3), training=training)
    assert max(highest) == most


def test_training_keeps_its_settings():
    world = World()
    own = for_evaluation(world.rollout, EvaluateConfig(), training=True)
    assert world.rollout.config == TRAINING
    kept = ("max_turns", "max_turn_tokens", "max_tokens", "env_deadline_seconds")
    assert [getattr(own.config, name) for name in kept] == [
        getattr(TRAINING, name) for name in kept
    ]


def test_failures_are_counted_and_left_out_of_the_means():
    async def hook(call, task, step):
        if call == "step" and task.id == "4":
            raise OSError("flaky")

    found = World(hook).evaluate()
    assert found.episodes == 4
    assert found.failures == {"env_error": 1}
    assert found.means["reward"] == 1.5


def test_conformance_6_an_evaluation_that_hangs_ends_at_its_deadline():
    async def hook(call, task, step):
        if call == "step" and int(task.id) >= 2:
            await trio.sleep(49.0)

    config = EvaluateConfig(max_episodes=2, deadline_seconds=90.0)
    found = World(hook).evaluate(config=config, training=True)
    assert found.episodes == 4  # two at a time: the last one would end after 98 s
    assert found.failures == {"cancelled": 1}


def test_what_fails_because_of_the_deadline_is_counted_as_cancelled():
    async def hook(call, task, step):
        try:
            await trio.sleep(49.0)
        except trio.Cancelled:
            raise OSError("connection reset") from None

    found = World(hook).evaluate(config=EvaluateConfig(deadline_seconds=30.0))
    assert (found.episodes, found.failures) == (0, {"cancelled": 5})


def test_its_episodes_are_listed_while_they_run():
    async def hook(call, task, step):
        if call == "step":
            await trio.sleep(1.0)
            seen.append(flight.describe(trio.current_time(), most=5))

    seen, flight = [], Flight()
    World(hook).evaluate(flight=flight)
    assert sorted(seen[0]) == [
        f"evaluation {number} (task '{number}'): environment step, for 1.0 s of at most 50 s"
        for number in range(5)
    ]
    assert flight.episodes == 0
    assert flight.trajectories == 5


def test_without_tasks_or_without_survivors_there_are_no_means():
    async def hook(call, task, step):
        raise OSError("down")

    assert World().evaluate([]).means == {}
    found = World(hook).evaluate()
    assert (found.episodes, found.means, found.failures) == (0, {}, {"env_error": 5})


@pytest.mark.parametrize(
    ("field", "value", "condition"),
    [
        ("tasks", -1, ">= 0"),
        ("every", -1, ">= 0"),
        ("temperature", -0.5, ">= 0 and finite"),
        ("temperature", float("nan"), ">= 0 and finite"),
        ("max_episodes", 0, ">= 1"),
        ("deadline_seconds", 0.0, "> 0 and finite"),
        ("deadline_seconds", float("inf"), "> 0 and finite"),
    ],
)
def test_an_impossible_number_is_refused_with_its_value(field, value, condition):
    with pytest.raises(ConfigError, match=rf"evaluate.{field} must be {condition}, got {value}"):
        replace(EvaluateConfig(), **{field: value})
