"""reasoning-gym's own datasets and scorers, through the adapter."""

import random
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import (
    EnvironmentBroken,
    Message,
    RewardFailed,
    StepResult,
    Task,
    check_env,
    in_processes,
    load_env,
)
from headrace.envs.check import check_step

pytest.importorskip("reasoning_gym")

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import DATASETS

from headrace.envs.adapters.reasoning_gym import RUN_ANSWERS, ReasoningGymEnv, spec

# The answers in these are empty, and their scorers refuse them.
WITHOUT_ANSWERS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
# The scorers of these raise on some text.
STUMBLE = {"boxnet", "coin_flip", "game_of_life", "prime_factorization"}
NAMES = sorted(DATASETS)
# It is a mixture of others and has no default.
MORE = {"composite": {"datasets": [DatasetSpec("chain_sum", 1.0, {})]}}
FAST = ["chain_sum", "leg_counting", "prime_factorization", "spell_backward", "game_of_life"]


def answer_of(name: str, seed: int) -> str:
    return str(reasoning_gym.create_dataset(name, size=1, seed=seed)[0]["answer"])


@pytest.mark.parametrize("name", FAST)
def test_the_right_answer_is_worth_1_and_another_less(name: str) -> None:
    for seed in range(3):
        with ReasoningGymEnv(name, read=str.strip, hint="Reply with the answer.") as env:
            (question,) = env.reset(Task("x", {"seed": seed}), 0)
            assert question.content.endswith("\nReply with the answer.")
            right = env.step(Message("assistant", f" {answer_of(name, seed)}\n"))
            env.reset(Task("x", {"seed": seed}), 1)
            wrong = env.step(Message("assistant", "0"))
        assert (right.reward, right.terminated, right.info["success"]) == (1.0, True, 1.0)
        assert wrong.reward < 1
        assert wrong.info["success"] == 0.0


@given(st.sampled_from(FAST), st.integers(0, 2**31), st.text(max_size=30))
@settings(max_examples=60)
def test_whatever_a_policy_says_has_a_score_or_none(name: str, seed: int, text: str) -> None:
    with ReasoningGymEnv(name, read=str.strip) as env:
        env.reset(Task("x", {"seed": seed}), 0)
        try:
            result = env.step(Message("assistant", text))
        except RewardFailed:
            assert name in STUMBLE
            return
    check_step(result)
    assert 0 <= result.reward <= 1


def test_an_answer_on_which_the_scorer_stumbles_is_not_scored_and_none_is_worth_0() -> None:
    with ReasoningGymEnv("prime_factorization") as env:
        env.reset(Task("x", {"seed": 1}), 0)
        said = r"prime_factorization raised ValueError: .*, for 'two'; let `read` return None"
        with pytest.raises(RewardFailed, match=said):
            env.step(Message("assistant", "<answer>two</answer>"))
        result = env.step(Message("assistant", "It is two times three."))  # no answer
    assert result == StepResult(reward=0.0, terminated=True, info={"success": 0.0})


def test_in_a_run_it_is_a_failure_of_rewards() -> None:
    make = in_processes(
        partial(ReasoningGymEnv, "prime_factorization"), processes=1, start_deadline_seconds=90
    )

    async def main() -> None:
        async with make() as env:
            await env.reset(Task("x", {"seed": 1}), 0)
            with pytest.raises(RewardFailed, match="the scorer of prime_factorization raised"):
                await env.step(Message("assistant", "<answer>two</answer>"))
        async with make() as env:
            await env.reset(Task("x", {"seed": 1}), 0)
        assert make.statistics().started_total == 1  # the process is well

    trio.run(main)


def test_a_scorer_that_runs_its_answer_as_python_has_to_be_allowed() -> None:
    with (
        pytest.raises(EnvironmentBroken, match=r"countdown runs answers .* set allow_unsafe=True"),
        ReasoningGymEnv("countdown") as env,
    ):
        env.reset(Task("x", {"seed": 1}), 0)


def test_settings_are_the_dataset_s_and_the_answer_may_follow_thoughts() -> None:
    terms = {"min_terms": 2, "max_terms": 2}
    with ReasoningGymEnv("chain_sum", settings=terms) as env:
        (question,) = env.reset(Task("x", {"seed": 5}), 0)
        assert question.content.count("+") + question.content.count("-") == 1
        right = reasoning_gym.create_dataset("chain_sum", size=1, seed=5, **terms)[0]["answer"]
        said = f"Not <answer>0</answer>, I think.\n<answer>\n{right} </answer>."
        assert env.step(Message("assistant", said)).reward == 1
        assert env.step(Message("assistant", right)).reward == 0  # without the marks


def test_a_mixture_of_datasets_is_a_dataset() -> None:
    parts = [DatasetSpec(name, 1.0, {}) for name in ("chain_sum", "spell_backward")]
    asked = set()
    for seed in range(8):
        with ReasoningGymEnv("composite", settings={"datasets": parts}) as env:
            (question,) = env.reset(Task("x", {"seed": seed}), 0)
            assert env.reset(Task("x", {"seed": seed}), 1) == [question]
            right = f"<answer>{env._entry['answer']}</answer>"
            assert env.step(Message("assistant", right)).reward == 1
            asked.add(env._name)
    assert asked == {"chain_sum", "spell_backward"}


def test_a_recipe_names_it() -> None:
    found = load_env("reasoning_gym/chain_sum")
    trio.run(check_env, found.make, found.tasks("eval", 2, 0))
    with pytest.raises(ValueError, match=r"can't make 'chain_some' .* not registered"):
        load_env("reasoning_gym/chain_some")


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ("countdown", {}, "countdown runs answers .* set allow_unsafe=True"),
        ("composite", {}, r"can't make 'composite' with settings=\{\}: .*; change them"),
        ("chain_sum", {"settings": {"min_terms": 9}}, "can't make 'chain_sum' .*'min_terms': 9"),
        ("chain_sum", {"settings": {"terms": 9}}, "can't make 'chain_sum' .*'terms'"),
    ],
)
def test_what_no_episode_could_start_is_refused_at_once(dataset, options, message) -> None:
    with pytest.raises(ValueError, match=message):
        spec(dataset, **options)
    if dataset == "countdown":
        assert spec(dataset, allow_unsafe=True).best_reward == 1.0


def test_in_processes_it_keeps_the_protocol_and_members_read_the_same() -> None:
    make = in_processes(
        partial(ReasoningGymEnv, "chain_sum"), processes=1, start_deadline_seconds=90
    )
    trio.run(check_env, make, [Task(f"{seed}", {"seed": seed}) for seed in range(2)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # arc_agi's library leaves a file open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", NAMES)
def test_every_dataset_is_seeded_and_scores_answers(name: str, tmp_path: Path) -> None:
    before = random.getstate()
    with ReasoningGymEnv(name, read=str.strip, settings=MORE.get(name), allow_unsafe=True) as env:
        first = env.reset(Task("x", {"seed": 11}), 0)
        assert env.reset(Task("x", {"seed": 11}), 1) == first
        result = env.step(Message("assistant", str(env._entry["answer"])))
        assert (result.reward == 1) == (name not in WITHOUT_ANSWERS)
        for text in ("", "x", "1", "[[1,2],[3", "null", "{}", "1e999", "a" * 2000):
            try:
                check_step(env.step(Message("assistant", text)))
            except RewardFailed:
                assert name in STUMBLE
        mark = tmp_path / "was here"
        with suppress(RewardFailed):
            env.step(Message("assistant", f"[open({str(mark)!r}, 'w')]"))
        assert mark.exists() == (name in RUN_ANSWERS)
    assert random.getstate() == before


@pytest.mark.slow
def test_processes_ask_the_same_questions_for_a_seed() -> None:
    """Five datasets draw from sets, whose order the hash seed of a process decides."""

    async def main() -> None:
        for name in ("isomorphic_strings", "knight_swap", "polynomial_multiplication"):
            make = in_processes(
                partial(ReasoningGymEnv, name, allow_unsafe=True),
                processes=2,
                start_deadline_seconds=90,
            )
            async with make() as one, make() as two:
                for seed in range(3):
                    task = Task("x", {"seed": seed})
                    assert await one.reset(task, 0) == await two.reset(task, 1)

    trio.run(main)
