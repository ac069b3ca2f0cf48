"""Environments in threads that hang, under the rollout and the controller."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import trio

from headrace.envs import Env, Message, StepResult, Task, in_threads
from headrace.pipeline.controller import Controller, ControllerConfig
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import EpisodeIdentity, Rollout, run_episode
from headrace.pipeline.types import EpisodeFailure, FailureKind
from tests.controller.harness import RENDERER, Run
from tests.fakes.policy import FakePolicy

CONFIG = RolloutConfig(
    group_size=2, max_turns=2, max_turn_tokens=2, max_tokens=32, max_episodes=16,
    env_deadline_seconds=0.3, close_deadline_seconds=0.3, max_retries=0,
)  # fmt: skip


class Stuck:
    """Every step hangs until `release` is set."""

    def __init__(self, release: threading.Event) -> None:
        self._release = release

    def __enter__(self) -> "Stuck":
        return self

    def __exit__(self, *error: object) -> None: ...

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", "0")]

    def step(self, message: Message) -> StepResult:
        self._release.wait(10.0)
        return StepResult(terminated=True)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name.startswith("Stuck."):  # a worker of trio's, which goes on to live
            while thread.name.startswith("Stuck."):
                event.wait(0.01)


def rollout(make: Callable[[], Env]) -> Rollout:
    policy = FakePolicy(sample_seconds=lambda request: 0.0)
    return Rollout(make, RENDERER, policy.sample, CONFIG)


def test_a_hang_is_a_failure_of_its_episode(release: threading.Event) -> None:
    make = in_threads(lambda: Stuck(release), name="Stuck")
    outcome = trio.run(run_episode, rollout(make), Task("0"), EpisodeIdentity((0, 0), 0))
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.ENV_TIMEOUT
    assert outcome.error == "environment step took more than 0.3 s"
    assert make.statistics().abandoned == 1


def test_conformance_1_an_environment_that_always_hangs_ends_the_run(
    release: threading.Event,
) -> None:
    make = in_threads(lambda: Stuck(release), threads=8, max_abandoned=3, name="Stuck")
    run = Run()
    stages = replace(run.stages, rollout=rollout(make))
    config = ControllerConfig(concurrency="fixed", group_failures=10**6)

    async def main() -> None:
        controller = Controller(
            stages, run.schedule, config, steps=4, seed=0, on_update=run.updates.append
        )
        with trio.fail_after(20.0):
            await controller.run()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    texts = [str(error) for error in leaves(caught.value)]
    assert any("threads of Stuck hang in calls" in text for text in texts), texts
    assert any(" in Stuck.step (" in text for text in texts)


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
