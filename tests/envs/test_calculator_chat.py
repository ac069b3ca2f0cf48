"""The calculator in the words for a chat model."""

import random

import pytest
import trio

from headrace.envs import Message, StepResult, Task, ToolCall, check_env, load_env
from headrace.envs.calculator_chat import SPEC, SYSTEM, demonstrate, is_answer

TASK = Task("123+456", {"left": 123, "right": 456})
CALL = ToolCall("calculator", {"expression": "123 + 456"})


def play(*turns: Message) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        async with SPEC.make() as env:
            await env.reset(TASK, 0)
            return [await env.step(turn) for turn in turns]

    return trio.run(episode)


def calls(*made: ToolCall) -> Message:
    return Message("assistant", "", made)


def test_keeps_the_protocol() -> None:
    probes = (Message("assistant", "It is 579."), calls(CALL), calls(CALL, CALL))
    trio.run(lambda: check_env(SPEC.make, SPEC.tasks("train", 3, 0), probes=probes))


def test_is_the_calculator_for_chat_models() -> None:
    assert load_env("calculator").for_chat is SPEC
    assert SPEC.tools[0].parameters["required"] == ["expression"]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("579", True),
        ("The answer is 579.", True),
        ("123 + 456 = 579", True),
        ("579.0", False),
        ("579 or 580", False),
        ("-579", False),
        ("", False),
    ],
)
def test_the_last_number_is_the_answer(text: str, right: bool) -> None:
    (end,) = play(Message("assistant", text))
    assert (end.reward, end.terminated) == (float(right), True)
    assert is_answer(text, "579") == right


def test_every_call_of_a_turn_is_answered() -> None:
    middle, end = play(calls(CALL, ToolCall("abacus")), Message("assistant", "579"))
    assert [message.content for message in middle.messages] == [
        "579",
        "there is no tool 'abacus'; use calculator",
    ]
    assert end.info == {"success": 1.0, "tool_used": 1.0}


def test_a_wrong_call_reads_what_is_wrong() -> None:
    (middle,) = play(calls(ToolCall("calculator", {"sum": "1+2"})))
    assert "unknown argument 'sum'" in middle.messages[0].content
    assert middle.info["tool_used"] == 0.0


def test_too_many_calls_end_the_episode() -> None:
    (end,) = play(calls(CALL, CALL, CALL))
    assert (end.reward, end.terminated) == (0.0, True)


def test_demonstrations_can_be_played() -> None:
    rng = random.Random(0)
    scripts = [demonstrate(TASK, rng) for _ in range(40)]
    with_tool = [script for script in scripts if script[2].tool_calls]
    assert 10 < len(with_tool) < 30
    for script in with_tool:
        assert script[0].content == SYSTEM
        turns = [message for message in script if message.role == "assistant"]
        assert play(*turns)[-1].reward == 1.0
