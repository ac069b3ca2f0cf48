"""What holds for each built-in task, in each of its wordings."""

import random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import (
    BUILTIN,
    EnvSpec,
    Message,
    StepResult,
    Task,
    ToolCall,
    check_env,
    frozen_lake,
    guess_number,
    lookup,
    search,
)
from headrace.envs.check import check_step

# The code tasks start a sandbox for each step; they have tests of their own.
SPECS: dict[str, EnvSpec] = {
    f"{name}{wording}": spec
    for name, plain in BUILTIN.items()
    if name != "code"
    for wording, spec in (("", plain), (" for chat", plain.for_chat))
    if spec is not None
}
EXPERTS = {
    "frozen_lake": frozen_lake.expert,
    "frozen_lake for chat": lambda task: frozen_lake.expert(task, chat=True),
    "lookup": lookup.expert,
    "lookup for chat": lambda task: lookup.expert(task, chat=True),
    "search": search.expert,
}
SEEDS = st.integers(0, 2**31)
NAMES = st.sampled_from(sorted(SPECS))

TEXTS = st.text(max_size=8) | st.sampled_from(["h", "udlr", "right, right", "482", "kfa", "1+2"])
CALLS = st.builds(
    ToolCall,
    st.sampled_from(["search", "calculator", "", "x"]),
    st.dictionaries(st.sampled_from(["query", "expression", ""]), TEXTS | st.none(), max_size=2),
    st.sampled_from(["ok", "malformed", "unclosed", "over_limit"]),
    argument=st.none() | TEXTS,
)
TURNS = st.builds(Message, st.just("assistant"), TEXTS, st.lists(CALLS, max_size=2).map(tuple))


def play(spec: EnvSpec, task: Task, said: list[Message]) -> tuple[list[Message], list[StepResult]]:
    async def episode() -> tuple[list[Message], list[StepResult]]:
        results: list[StepResult] = []
        async with spec.make() as env:
            first = list(await env.reset(task, 0))
            for message in said:
                results.append(await env.step(message))
                if results[-1].terminated or results[-1].truncated:
                    break
        return first, results

    return trio.run(episode)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_keeps_the_protocol(name: str) -> None:
    trio.run(check_env, SPECS[name].make, SPECS[name].tasks("train", 2, 0))


@given(NAMES, SEEDS, st.lists(TURNS, min_size=1, max_size=10))
@settings(max_examples=100)
def test_nothing_that_a_policy_says_raises(name: str, seed: int, said: list[Message]) -> None:
    spec = SPECS[name]
    (task,) = spec.tasks("train", 1, seed)
    _, results = play(spec, task, said)
    for result in results:
        check_step(result)
    assert sum(result.reward for result in results) <= 1


@given(st.sampled_from(sorted(EXPERTS)), SEEDS, st.sampled_from(["train", "eval"]))
def test_the_expert_always_reaches_the_best_reward(name: str, seed: int, split: str) -> None:
    spec = SPECS[name]
    (task,) = spec.tasks(split, 1, seed)
    script = EXPERTS[name](task)
    first, results = play(spec, task, [m for m in script if m.role == "assistant"])
    assert sum(result.reward for result in results) == spec.best_reward
    assert results[-1].terminated
    assert results[-1].info["success"] == 1.0
    answered = [message for result in results for message in result.messages]
    assert first + answered == [m for m in script if m.role != "assistant"]


@given(NAMES, SEEDS)
def test_demonstrations_are_what_the_environment_says(name: str, seed: int) -> None:
    spec = SPECS[name]
    (task,) = spec.tasks("train", 1, seed)
    assert spec.demonstrate is not None
    script = spec.demonstrate(task, random.Random(seed))
    first, results = play(spec, task, [m for m in script if m.role == "assistant"])
    assert results[-1].terminated
    answered = [message for result in results for message in result.messages]
    assert first + answered == [m for m in script if m.role != "assistant"]


@given(NAMES, SEEDS, SEEDS, st.integers(0, 60))
@settings(max_examples=30)
def test_tasks_are_a_function_of_the_seed_and_the_splits_share_none(
    name: str, train: int, held_out: int, count: int
) -> None:
    drawn = SPECS[name].tasks("train", count, train)
    other = SPECS[name].tasks("eval", count, held_out)
    assert drawn == SPECS[name].tasks("train", count, train)
    assert len({t.id for t in drawn}) == len({t.id for t in other}) == count
    if name != "guess_number":  # has fifteen tasks in all
        assert {t.id for t in drawn}.isdisjoint(t.id for t in other)


def test_too_many_tasks_are_an_error() -> None:
    assert len(guess_number.LETTERS) == guess_number.SECRETS
    for module, most in ((lookup, 1758), (search, 226), (frozen_lake, 20_000)):
        with pytest.raises(ValueError, match=f"count must be 0 to {most} for"):
            module.tasks("eval", most + 1, 0)
