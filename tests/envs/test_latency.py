"""Latencies: reproducible, of the stated mean, capped, and without influence on what is said."""

import math
import os
import subprocess
import sys

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from headrace.envs import (
    Env,
    LatencyConfig,
    Message,
    StepResult,
    Task,
    latency_seconds,
    with_latency,
)
from headrace.envs.check import check_env
from headrace.envs.guess_number import GuessNumberEnv, tasks

KINDS = st.sampled_from(["none", "constant", "lognormal", "pareto", "bimodal"])
CONFIGS = st.builds(
    LatencyConfig,
    kind=KINDS,
    mean_seconds=st.floats(0.05, 10),
    sigma=st.floats(0, 3),
    alpha=st.floats(1.05, 4),
    tail_probability=st.floats(0, 0.1),
    tail_seconds=st.floats(0, 0.5),
    max_seconds=st.floats(0, 20),
    seed=st.integers(),
)
SLOW = LatencyConfig("lognormal", mean_seconds=2.0, seed=3)


@given(CONFIGS, st.text(), st.integers(0, 2**64), st.integers(0, 50))
@settings(max_examples=100)
def test_a_latency_is_reproducible_and_within_the_cap(
    config: LatencyConfig, task_id: str, member: int, turn: int
) -> None:
    seconds = latency_seconds(config, task_id, member, turn)
    assert 0 <= seconds <= config.max_seconds
    assert latency_seconds(config, task_id, member, turn) == seconds


@pytest.mark.parametrize(
    "config",
    [
        LatencyConfig("constant", mean_seconds=0.3),
        LatencyConfig("lognormal", mean_seconds=0.3, sigma=0.8),
        LatencyConfig("pareto", mean_seconds=0.3, alpha=3.0),
        LatencyConfig("bimodal", mean_seconds=0.3, tail_probability=0.2, tail_seconds=1.0),
    ],
)
def test_the_mean_without_the_cap_is_mean_seconds(config: LatencyConfig) -> None:
    drawn = [latency_seconds(config, f"task {n % 97}", n, n % 5) for n in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(config.mean_seconds, rel=0.04)


def test_members_turns_tasks_and_seeds_differ() -> None:
    identities = [("a", 0, 0), ("b", 0, 0), ("a", 1, 0), ("a", 0, 1), ("a0", 0, 0), ("a", 10, 0)]
    drawn = {latency_seconds(SLOW, *identity) for identity in identities}
    other_seed = latency_seconds(LatencyConfig("lognormal", mean_seconds=2.0), "a", 0, 0)
    assert len(drawn | {other_seed}) == 7


def test_another_process_with_another_hash_seed_draws_the_same() -> None:
    program = (
        "from headrace.envs import LatencyConfig, latency_seconds as draw;"
        "print(draw(LatencyConfig('lognormal', mean_seconds=2.0, seed=3), 'a', 7, 1))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert outputs == {repr(latency_seconds(SLOW, "a", 7, 1))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean_seconds": -1.0}, "mean_seconds must be >= 0 and finite, got -1.0"),
        ({"max_seconds": math.nan}, "max_seconds must be >= 0 and finite, got nan"),
        ({"alpha": 1.0}, "alpha must be > 1, as the mean needs, and finite, got 1.0"),
        ({"alpha": math.inf}, "alpha must be > 1, as the mean needs, and finite, got inf"),
        ({"sigma": -0.1}, r"sigma must be in 0\.\.10, got -0.1"),
        ({"tail_probability": 1.0}, "tail_probability must be >= 0 and < 1, got 1.0"),
        ({"tail_seconds": math.inf}, "tail_seconds must be >= 0 and finite, got inf"),
        ({"kind": "bimodal", "tail_seconds": 9.0}, r"<= mean_seconds \(0.05\), got 0.45"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^env\.latency\..*{message}; \w+ --env\.latency\."):
        LatencyConfig(**changes)  # type: ignore[arg-type]


def test_only_answers_to_the_policy_are_delayed() -> None:
    (task,) = tasks("train", 1, 0)  # the secret is 0
    make = with_latency(GuessNumberEnv, SLOW)
    expected = [latency_seconds(SLOW, task.id, 7, turn) for turn in (0, 1)]

    async def episode() -> list[float]:
        waited = []
        async with make() as env:
            await env.reset(task, 7)
            for letter in "hba":
                began = trio.current_time()
                await env.step(Message("assistant", letter))
                waited.append(trio.current_time() - began)
        return waited

    waited = trio.run(episode, clock=MockClock(autojump_threshold=0))
    assert waited == pytest.approx([*expected, 0.0])


def test_wrapping_keeps_the_protocol_and_the_answers() -> None:
    drawn = tasks("train", 3, 0)
    make = with_latency(GuessNumberEnv, SLOW)
    trio.run(check_env, make, drawn, clock=MockClock(autojump_threshold=0))


class Hall(Env):
    """What opens is another object, which alone can be talked to."""

    async def __aenter__(self) -> Env:
        return GuessNumberEnv()

    async def reset(self, task: Task, seed: int) -> list[Message]:
        raise AssertionError("this isn't the open environment")

    async def step(self, message: Message) -> StepResult:
        raise AssertionError("this isn't the open environment")


def test_what_opening_gives_is_talked_to() -> None:
    make = with_latency(Hall, SLOW)
    trio.run(check_env, make, tasks("train", 1, 0), clock=MockClock(autojump_threshold=0))


def test_none_wraps_nothing() -> None:
    assert with_latency(GuessNumberEnv, LatencyConfig()) is GuessNumberEnv
