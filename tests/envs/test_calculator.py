"""The calculator environment, its tasks and its demonstrations."""

import math
import random
from collections import Counter

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Message, StepResult, Task, ToolCall, check_env
from headrace.envs.calculator import _STRIDE, _SUMS, SPEC, demonstrate, tasks

TASK = Task("123+456", {"left": 123, "right": 456})
GUESS = Message("assistant", "579")
GOOD_CALL = Message(
    "assistant", "calculator(123+456)", (ToolCall("calculator", argument="123+456"),)
)
BAD_CALLS = [
    Message("assistant", "", (ToolCall("calculator", argument="1/2"),)),
    Message("assistant", "", (ToolCall("calculator", argument=""),)),
    Message("assistant", "", (ToolCall("calculator", status="malformed"),)),
    Message("assistant", "", (ToolCall("abacus", argument="1+2"),)),
]
SEEDS = st.integers(0, 2**31)


def play(task: Task, *turns: Message) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        async with SPEC.make() as env:
            await env.reset(task, 0)
            return [await env.step(turn) for turn in turns]

    return trio.run(episode)


def test_keeps_the_protocol() -> None:
    probes = (GUESS, GOOD_CALL, *BAD_CALLS)
    trio.run(lambda: check_env(SPEC.make, tasks("train", 3, 0), probes=probes))
    trio.run(check_env, SPEC.make, tasks("eval", 3, 0))


def test_a_right_guess_wins_without_the_tool() -> None:
    (end,) = play(TASK, GUESS)
    assert end == StepResult(reward=1.0, terminated=True, info={"success": 1.0, "tool_used": 0.0})


@pytest.mark.parametrize("text", ["578", "0579", " 579", "579 ", "", "five", "-579"])
def test_any_other_answer_loses(text: str) -> None:
    (end,) = play(TASK, Message("assistant", text))
    assert (end.reward, end.terminated, end.info["success"]) == (0.0, True, 0.0)


def test_the_tool_answers_and_the_answer_wins() -> None:
    middle, end = play(TASK, GOOD_CALL, GUESS)
    assert middle.messages == (Message("tool", "579", name="calculator"),)
    assert not middle.terminated
    assert end.reward == 1.0
    assert end.info == {"success": 1.0, "tool_used": 1.0}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_wrong_call_reads_error_and_may_be_mended_once(call: Message) -> None:
    first, second, end = play(TASK, call, GOOD_CALL, GUESS)
    assert [message.content for message in first.messages] == ["error"]
    assert first.info["tool_used"] == 0.0
    assert [message.content for message in second.messages] == ["579"]
    assert end.reward == 1.0


def test_a_third_call_ends_the_episode() -> None:
    *_, end = play(TASK, GOOD_CALL, GOOD_CALL, GOOD_CALL)
    assert end.terminated
    assert end.reward == 0.0
    assert end.info == {"success": 0.0, "tool_used": 1.0}


@given(SEEDS, SEEDS, st.integers(0, 300))
@settings(max_examples=25)
def test_splits_share_no_task_whatever_the_seeds(train: int, held_out: int, count: int) -> None:
    ids = {task.id for task in tasks("train", count, train)}
    eval_ids = {task.id for task in tasks("eval", count, held_out)}
    assert len(ids) == len(eval_ids) == count
    assert not ids & eval_ids


def test_the_whole_eval_split_is_even_and_unseen_in_training() -> None:
    held_out = tasks("eval", 81_000, 1)
    ids = {task.id for task in held_out}
    assert len(ids) == 81_000
    assert not ids & {task.id for task in tasks("train", 20_000, 0)}
    for name in ("left", "right"):
        hundreds = Counter(task.data[name] // 100 for task in held_out)
        assert max(hundreds.values()) - min(hundreds.values()) <= 100


def test_the_fixed_shuffle_meets_every_sum() -> None:
    assert math.gcd(_STRIDE, _SUMS) == 1


def test_tasks_are_a_function_of_the_seed() -> None:
    assert tasks("train", 50, 3) == tasks("train", 50, 3)
    assert tasks("train", 50, 3) != tasks("train", 50, 4)


def test_too_many_tasks_is_an_error() -> None:
    with pytest.raises(ValueError, match="count must be 0 to 81000"):
        tasks("eval", 81_001, 0)


@given(SEEDS)
@settings(max_examples=50)
def test_demonstrations_are_what_the_environment_says(seed: int) -> None:
    (task,) = tasks("train", 1, seed)
    first, *rest = demonstrate(task, random.Random(seed))
    assert first == Message("user", task.id)
    results = play(task, *(message for message in rest if message.role == "assistant"))
    assert [m for result in results for m in result.messages] == rest[1:2]
    assert 200 <= int(rest[-1].content) <= 1998  # a guess is the sum of some two operands
    if len(rest) == 3:
        assert results[-1].reward == SPEC.best_reward


def test_thirty_percent_of_demonstrations_call_the_tool() -> None:
    rng = random.Random(0)
    calls = sum(len(demonstrate(task, rng)) == 4 for task in tasks("train", 4000, 0))
    assert 0.27 < calls / 4000 < 0.33
