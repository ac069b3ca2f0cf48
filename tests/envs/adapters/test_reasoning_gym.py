"""reasoning-gym's own datasets and scorers, through the adapter."""

import random
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Message, Task, check_env, in_processes
from headrace.envs.check import check_step

pytest.importorskip("reasoning_gym")

import reasoning_gym
from reasoning_gym.factory import DATASETS

from headrace.envs.adapters.reasoning_gym import ReasoningGymEnv, last_line

# The answers in these are empty, and their scorers refuse them.
WITHOUT_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
# "composite" is a mixture of others and has no default.
NAMES = sorted(set(DATASETS) - {"composite"})
FAST = ["chain_sum", "leg_counting", "prime_factorization", "spell_backward", "game_of_life"]


def answer_of(name: str, seed: int) -> str:
    return str(reasoning_gym.create_dataset(name, size=1, seed=seed)[0]["answer"])


@pytest.mark.parametrize("name", FAST)
def test_the_right_answer_is_worth_1_and_another_less(name: str) -> None:
    for seed in range(3):
        with ReasoningGymEnv(name, hint="Reply with the answer.") as env:
            (question,) = env.reset(Task("x", {"seed": seed}), 0)
            assert question.content.endswith("\nReply with the answer.")
            right = env.step(Message("assistant", f" {answer_of(name, seed)}\n"))
            env.reset(Task("x", {"seed": seed}), 1)
            wrong = env.step(Message("assistant", "no"))
        assert (right.reward, right.terminated, right.info["success"]) == (1.0, True, 1.0)
        assert wrong.reward < 1
        assert wrong.info["success"] == 0.0


@given(st.sampled_from(FAST), st.integers(0, 2**31), st.text(max_size=30))
@settings(max_examples=60)
def test_nothing_that_a_policy_says_raises(name: str, seed: int, text: str) -> None:
    with ReasoningGymEnv(name) as env:
        env.reset(Task("x", {"seed": seed}), 0)
        result = env.step(Message("assistant", text))
    check_step(result)
    assert 0 <= result.reward <= 1


def test_an_answer_on_which_the_scorer_stumbles_is_worth_0_and_said() -> None:
    with ReasoningGymEnv("prime_factorization") as env:
        env.reset(Task("x", {"seed": 1}), 0)
        result = env.step(Message("assistant", "two times three"))
    assert result.reward == 0
    assert result.info == {"success": 0.0, "unscored": 1.0}


def test_settings_are_the_dataset_s_and_the_last_line_is_the_answer() -> None:
    make = partial(ReasoningGymEnv, "chain_sum", settings={"min_terms": 2, "max_terms": 2})
    with make(read=last_line) as env:
        (question,) = env.reset(Task("x", {"seed": 5}), 0)
        assert question.content.count("+") + question.content.count("-") == 1
        right = reasoning_gym.create_dataset(
            "chain_sum", size=1, seed=5, min_terms=2, max_terms=2
        )[0]["answer"]
        assert env.step(Message("assistant", f"I add.\n{right}\n")).reward == 1
    assert last_line("") == last_line(" \n ") == ""


def test_in_processes_it_keeps_the_protocol_and_members_read_the_same() -> None:
    make = in_processes(
        partial(ReasoningGymEnv, "chain_sum"), processes=1, start_deadline_seconds=90
    )
    trio.run(check_env, make, [Task(f"{seed}", {"seed": seed}) for seed in range(2)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # arc_agi's library leaves a file open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_is_seeded_scores_its_answer_and_stands_nonsense(name: str) -> None:
    before = random.getstate()
    with ReasoningGymEnv(name) as env:
        first = env.reset(Task("x", {"seed": 11}), 0)
        assert env.reset(Task("x", {"seed": 11}), 1) == first
        result = env.step(Message("assistant", answer_of(name, 11)))
        assert (result.reward == 1) == (name not in WITHOUT_ANSWERS)
        for text in ("", "x", "1", "[[1,2],[3", "null", "{}", "1e999", "a" * 2000):
            check_step(env.step(Message("assistant", text)))
    assert random.getstate() == before
