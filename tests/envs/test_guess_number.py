"""The number game: replies, rewards, the best play."""

import math
import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Message, StepResult, Task, check_env
from headrace.envs.guess_number import (
    LETTERS,
    MAX_GUESSES,
    SECRETS,
    SPEC,
    GuessNumberEnv,
    demonstrate,
    tasks,
)


def play(secret: int, guesses: str) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        results = []
        async with GuessNumberEnv() as env:
            await env.reset(Task("x", {"secret": secret}), 0)
            for letter in guesses:
                results.append(await env.step(Message("assistant", letter)))
                if results[-1].terminated:
                    break
        return results

    return trio.run(episode)


def test_keeps_the_protocol() -> None:
    probes = tuple(Message("assistant", letter) for letter in LETTERS)
    trio.run(lambda: check_env(GuessNumberEnv, tasks("train", 30, 0), probes=probes))
    trio.run(check_env, GuessNumberEnv, tasks("eval", 2, 0))


@given(st.integers(0, SECRETS - 1), st.text(LETTERS, min_size=1, max_size=8))
@settings(max_examples=50)
def test_replies_and_rewards_follow_the_rules(secret: int, guesses: str) -> None:
    results = play(secret, guesses)
    numbers = [LETTERS.index(letter) for letter in guesses]
    used = numbers.index(secret) + 1 if secret in numbers[:MAX_GUESSES] else None
    assert len(results) == min(used or len(numbers), MAX_GUESSES)
    for number, result in zip(numbers, results, strict=False):
        if not result.terminated:
            assert result.messages == (Message("user", "<" if secret < number else ">"),)
            assert result.reward == 0.0
    last = results[-1]
    assert last.terminated == (used is not None or len(numbers) >= MAX_GUESSES)
    assert last.reward == (1 - 0.2 * (used - 1) / 5 if used else 0.0)
    assert last.info == {"success": float(used is not None), "guesses": len(results)}


@pytest.mark.parametrize("text", ["", "aa", "p", "A", "0", " ", "a ", "<end>"])
def test_anything_but_one_letter_ends_the_episode(text: str) -> None:
    async def episode() -> StepResult:
        async with GuessNumberEnv() as env:
            await env.reset(Task("x", {"secret": 0}), 0)
            return await env.step(Message("assistant", text))

    assert trio.run(episode) == StepResult(terminated=True, info={"success": 0.0, "guesses": 0.0})


def test_the_expert_wins_within_four_guesses_and_49_15ths_in_the_mean() -> None:
    guesses, rewards = [], []
    for task in tasks("eval", SECRETS, 0):
        first, *rest = demonstrate(task, random.Random(0))
        letters = "".join(m.content for m in rest if m.role == "assistant")
        results = play(task.data["secret"], letters)
        assert first == Message("user", "?")
        assert [m for result in results for m in result.messages] == rest[1::2]
        guesses.append(len(letters))
        rewards.append(results[-1].reward)
    assert max(guesses) == 4
    assert sum(guesses) == 49
    assert math.isclose(sum(rewards) / SECRETS, SPEC.best_reward)


def test_no_play_is_better_than_the_stated_best() -> None:
    def best(secrets: int, used: int) -> float:
        """Total reward of the best play over that many equally likely secrets."""
        if secrets == 0 or used == MAX_GUESSES:
            return 0.0
        win = 1 - 0.2 * used / 5
        return win + max(
            best(below, used + 1) + best(secrets - 1 - below, used + 1) for below in range(secrets)
        )

    assert math.isclose(best(SECRETS, 0) / SECRETS, SPEC.best_reward)
    assert math.isclose(SPEC.best_reward, 0.9093333333333333)


def test_tasks_cycle_through_all_secrets() -> None:
    drawn = tasks("train", 2 * SECRETS, 0)
    assert [task.data["secret"] for task in drawn] == [*range(SECRETS)] * 2
    assert len({task.id for task in drawn}) == len(drawn)
    with pytest.raises(ValueError, match="count must be >= 0"):
        tasks("train", -1, 0)
