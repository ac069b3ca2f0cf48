"""Environments that do harm, in a few episodes or in all, under the real controller and clock.

A run survives a few, ends with a clear error where all do harm, and leaves nothing behind.
"""

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from headrace.envs import Message, Reward, StepResult, Task, in_processes, in_threads
from headrace.envs.rewards import Scorer
from headrace.pipeline.controller import Controller, ControllerConfig
from headrace.pipeline.errors import StageFailed
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from tests.controller.harness import RENDERER, Run, check_laws, leaves
from tests.fakes import reward_functions
from tests.fakes.hostile_env import CLOSED, HARM, OPENED, RELEASE, Hostile
from tests.fakes.policy import FakePolicy

# What ends no run: the environment answers all the same, or the episode is over.
HARMLESS = {"leave_a_thread", "leave_a_child", "flood_output", "say_much", "surrogates"}
HANGS = {"hang", "spin"}
PROCESS_ONLY = {
    "exit_at_once",
    "crash",
    "spin",
    "leave_a_child",
}  # a thread can't be saved from it
THREADS = sorted(set(HARM) - PROCESS_ONLY)
QUICK = {"fail", "hang", "nothing", "not_finite", "endless", "say_much", "leave_a_thread"}
STEPS = 5


class Quiet:
    """An environment without harm."""

    async def __aenter__(self) -> "Quiet":
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", "0")]

    async def step(self, message: Message) -> StepResult:
        return StepResult(terminated=True)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    RELEASE.clear()
    before = children(), files()
    yield
    RELEASE.set()
    give_up = time.monotonic() + 10.0
    while any(own(thread.name) for thread in threading.enumerate()):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert (children(), files()) == before


def own(thread: str) -> bool:
    return thread == "left" or thread.startswith("Hostile")


def children() -> set[str]:
    """Processes of this one that aren't of the tests themselves."""
    paths = Path("/proc/self/task").glob("*/children")
    return {child for path in paths for child in path.read_text().split()}


def files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number alone


def world_of(make, *, deadline_seconds, steps=STEPS, rewards=()) -> Run:
    config = RolloutConfig(
        group_size=2, max_turns=2, max_turn_tokens=2, max_tokens=32, max_episodes=8,
        env_deadline_seconds=deadline_seconds, close_deadline_seconds=deadline_seconds,
        max_retries=2,
    )  # fmt: skip
    policy = FakePolicy(sample_seconds=lambda request: 0.0, update_seconds=0.0)
    world = Run(policy=policy, steps=steps, rollout=config)
    scorer = Scorer(rewards) if rewards else None
    rollout = Rollout(make, RENDERER, policy.sample, config, scorer, env_name="hostile:SPEC")
    return world.replace(rollout=rollout)


def go(world: Run, *, failures: int) -> None:
    async def main() -> None:
        world.controller = Controller(
            world.stages,
            world.schedule,
            ControllerConfig(group_failures=failures),
            steps=world.steps,
            seed=0,
            on_update=world.on_update,
        )
        with trio.fail_after(100.0):
            await world.controller.run()

    trio.run(main)


def survive(make, *, failures=4, **options) -> None:
    world = world_of(make, **options)
    go(world, failures=failures)
    check_laws(world)
    assert world.controller.flight.episodes == 0


def end(make, *, failures=4, **options) -> None:
    """All episodes do harm: the error says what, and in which environment."""
    with pytest.raises(BaseExceptionGroup) as caught:
        go(world_of(make, **options), failures=failures)
    texts = [str(error) for error in leaves(caught.value) if isinstance(error, StageFailed)]
    assert texts, caught.value.exceptions
    assert any("groups in a row failed" in text or "hang in calls" in text for text in texts), (
        texts
    )
    assert all("hostile:SPEC" in text or "Hostile" in text for text in texts), texts


def closed(folder: Path) -> tuple[int, int]:
    counts = [
        sum(len(path.read_text()) for path in folder.glob(f"{what} *"))
        for what in (OPENED, CLOSED)
    ]
    return counts[0], counts[1]


def marked(kinds, quick):
    return [pytest.param(k, marks=() if k in quick else pytest.mark.slow) for k in kinds]


@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("kind", marked(THREADS, QUICK))
def test_harm_in_threads(kind: str, share: float, tmp_path: Path) -> None:
    make = in_threads(
        partial(Hostile, str(tmp_path), kind, share), max_abandoned=6, name="Hostile"
    )
    seconds = 0.3 if kind in HANGS else 5.0
    if share < 1 or kind in HARMLESS:
        survive(make, deadline_seconds=seconds)
    else:
        end(make, deadline_seconds=seconds)
    RELEASE.set()
    give_up = time.monotonic() + 10.0
    while closed(tmp_path)[0] != closed(tmp_path)[1]:  # hung calls close when they end
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("kind", sorted(HARM))
def test_harm_in_processes(kind: str, share: float, tmp_path: Path) -> None:
    make = in_processes(partial(Hostile, str(tmp_path), kind, share), processes=4, name="Hostile")
    options = {"deadline_seconds": 20.0 if share < 1 and kind not in HANGS else 6.0}
    # 20 MB are more than a process may answer.
    if share < 1 or kind in HARMLESS - {"say_much"}:
        survive(make, **options, steps=3)
    else:
        end(make, **options, failures=2)
    assert make.statistics().busy == 0


@pytest.mark.parametrize("call", ["open", "reset", "close"])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_failures_of_other_calls(call: str, share: float, tmp_path: Path) -> None:
    make = in_threads(partial(Hostile, str(tmp_path), "fail", share, call), name="Hostile")
    if share < 1:
        survive(make, deadline_seconds=5.0)
    else:
        end(make, deadline_seconds=5.0)
    opened, ended = closed(tmp_path)
    assert opened == ended


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.05, 1.0])
@pytest.mark.parametrize("kind", sorted(reward_functions.HARM))
def test_rewards_that_do_harm(kind: str, share: float) -> None:
    function = partial(reward_functions.sometimes, kind, share)
    reward = Reward("mine", function, deadline_seconds=0.5, concurrency=4)
    world = world_of(Quiet, deadline_seconds=20.0, rewards=[reward])
    if share < 1:
        go(world, failures=4)
        check_laws(world)
        return
    with pytest.raises(BaseExceptionGroup) as caught:
        go(world, failures=4)
    texts = [str(error) for error in leaves(caught.value) if isinstance(error, StageFailed)]
    assert texts
    assert all("the reward 'mine' couldn't be computed" in text for text in texts), texts
