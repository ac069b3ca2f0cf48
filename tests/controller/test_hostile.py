"""Environments that do harm, in a few episodes or in all, under the real controller and clock.

A run survives a few, ends with a clear error where all do harm, and leaves nothing behind.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from headrace.envs import Message, Reward, StepResult, Task, in_processes, in_threads
from headrace.envs.processes import ProcessEnvs
from headrace.envs.rewards import Scorer
from headrace.pipeline.controller import Controller, ControllerConfig
from headrace.pipeline.errors import StageFailed
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from tests.controller.harness import RENDERER, Run, check_laws, leaves
from tests.fakes import reward_functions
from tests.fakes.hostile_env import CLOSED, HARM, HARMED, OPENED, RELEASE, Hostile
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
QUICK = {
    "fail",
    "hang",
    "nothing",
    "not_finite",
    "endless",
    "say_much",
    "leave_a_thread",
    "leave",
    "interrupt",
}
IN_PROCESSES = ["hang", "crash", "exit_at_once", "nothing", "flood_output", "leave_a_thread"]
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


def world_of(make, *, deadline_seconds, steps=STEPS, rewards=(), **options) -> Run:
    config = RolloutConfig(
        group_size=2, max_turns=2, max_turn_tokens=2, max_tokens=32,
        env_deadline_seconds=deadline_seconds, close_deadline_seconds=deadline_seconds,
        **{"max_episodes": 8, "max_retries": 2, **options}
    )  # fmt: skip
    policy = FakePolicy(sample_seconds=lambda request: 0.0, update_seconds=0.0)
    world = Run(policy=policy, steps=steps, rollout=config)
    scorer = Scorer(rewards) if rewards else None
    rollout = Rollout(make, RENDERER, policy.sample, config, scorer, env_name="hostile:SPEC")
    return world.replace(rollout=rollout)


def go(world: Run, *, failures: int) -> None:
    async def main() -> None:
        await warm_up(world.stages.rollout.make_env)
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


async def warm_up(make) -> None:
    """Start processes, so that a short deadline isn't spent on that."""
    if isinstance(make, ProcessEnvs):
        async with make(), make():
            pass


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


def count(folder: Path, what: str) -> int:
    path = folder / what
    return len(path.read_text()) if path.exists() else 0


def marked(kinds, quick):
    return [pytest.param(k, marks=() if k in quick else pytest.mark.slow) for k in kinds]


@pytest.mark.parametrize("every", [20, 1])
@pytest.mark.parametrize("kind", marked(THREADS, QUICK))
def test_harm_in_threads(kind: str, every: int, tmp_path: Path) -> None:
    make = in_threads(
        partial(Hostile, str(tmp_path), [kind], every), max_abandoned=6, name="Hostile"
    )
    seconds = 0.3 if kind in HANGS else 5.0
    if every > 1 or kind in HARMLESS:
        survive(make, deadline_seconds=seconds)
    else:
        end(make, deadline_seconds=seconds)
    assert count(tmp_path, HARMED)
    RELEASE.set()
    give_up = time.monotonic() + 10.0
    while count(tmp_path, OPENED) != count(tmp_path, CLOSED):  # hung calls close when they end
        assert time.monotonic() < give_up
        time.sleep(0.01)


def processes(folder: Path, kinds: Sequence[str], every: int, *, places: int = 2) -> ProcessEnvs:
    return in_processes(
        partial(Hostile, str(folder), kinds, every), processes=places, name="Hostile"
    )


def test_each_kind_of_harm_in_one_episode_of_twenty_of_processes(tmp_path: Path) -> None:
    make = processes(tmp_path, IN_PROCESSES, 20)
    survive(make, deadline_seconds=4.0, max_episodes=2)
    assert count(tmp_path, HARMED) >= len(IN_PROCESSES)
    assert make.statistics().started_total > len(set(IN_PROCESSES) - {"flood_output", "nothing"})
    assert make.statistics().busy == 0


@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_harm_in_all_episodes_of_processes(kind: str, tmp_path: Path) -> None:
    make = processes(tmp_path, [kind], 1)
    options = {"deadline_seconds": 1.0 if kind in HANGS else 20.0, "max_episodes": 2}
    if kind in HARMLESS:
        survive(make, **options, steps=1)
    else:
        end(make, **options, failures=1, max_retries=0)
    assert count(tmp_path, HARMED)
    assert make.statistics().busy == 0


@pytest.mark.slow
@pytest.mark.parametrize("every", [20, 1])
@pytest.mark.parametrize("kind", sorted(HARM))
def test_harm_in_processes(kind: str, every: int, tmp_path: Path) -> None:
    make = processes(tmp_path, [kind], every, places=4)
    options = {"deadline_seconds": 20.0 if every > 1 and kind not in HANGS else 6.0}
    # 20 MB are more than a process may answer.
    if every > 1 or kind in HARMLESS - {"say_much"}:
        survive(make, **options)
    else:
        end(make, **options, failures=2)
    assert count(tmp_path, HARMED)
    assert make.statistics().busy == 0


@pytest.mark.parametrize("call", ["open", "reset", "close"])
@pytest.mark.parametrize("every", [20, 1])
def test_failures_of_other_calls(call: str, every: int, tmp_path: Path) -> None:
    make = in_threads(partial(Hostile, str(tmp_path), ["fail"], every, call), name="Hostile")
    if every > 1:
        survive(make, deadline_seconds=5.0)
    else:
        end(make, deadline_seconds=5.0)
    assert count(tmp_path, OPENED) == count(tmp_path, CLOSED)
    assert count(tmp_path, HARMED)


def test_an_async_reward_that_blocks_for_ever_costs_its_process_and_the_run_goes_on() -> None:
    function = reward_functions.blocks_at_times
    reward = Reward("mine", function, deadline_seconds=0.5, concurrency=2)
    world = world_of(Quiet, deadline_seconds=20.0, rewards=[reward])
    go(world, failures=4)
    check_laws(world)
    assert world.controller.flight.failures.keys() == {"reward_timeout"}
    trajectories = [each for group in world.groups for each in group.trajectories]
    assert len({each.rewards["mine"] for each in trajectories}) > 2  # processes that answered


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
