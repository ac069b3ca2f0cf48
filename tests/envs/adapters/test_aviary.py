"""Aviary's own environment and one more, through the adapter, in processes with a loop."""

from functools import partial

import pytest
import trio

from headrace.envs import (
    Message,
    StepResult,
    Task,
    ToolCall,
    WorkerProcessError,
    check_env,
    in_asyncio,
)

pytest.importorskip("aviary.core")

from headrace.envs.adapters.aviary import AviaryEnv, describe_aviary_tools
from tests.fakes.aviary_envs import make_story, make_sums

STORY = Task("sea", {"about": "the sea"})
SUM = Task("sum")


def play(make, task: Task, *turns: Message) -> tuple[list[Message], list[StepResult]]:
    async def episode() -> tuple[list[Message], list[StepResult]]:
        async with in_asyncio(partial(AviaryEnv, make), processes=1)() as env:
            return list(await env.reset(task, 0)), [await env.step(turn) for turn in turns]

    return trio.run(episode)


def calls(*made: ToolCall) -> Message:
    return Message("assistant", "", made)


def test_aviary_s_own_environment_is_played() -> None:
    tell = ToolCall("print_story", {"story": "Waves came and went away."}, id="a")
    first, (end,) = play(make_story, STORY, calls(tell))
    assert [message.content for message in first] == [
        "Write a 5 word story via print_story about the sea"
    ]
    assert end == StepResult(reward=1.0, terminated=True)


def test_calls_reach_the_tools_and_wrong_ones_are_told() -> None:
    first, results = play(
        make_sums,
        SUM,
        calls(
            ToolCall("add", {"left": 2, "right": 3}, id="x"),
            ToolCall("add", {"left": "two", "right": 3}),
            ToolCall("subtract", {}),
            ToolCall("add", status="unclosed"),
        ),
        calls(ToolCall("add", {"left": 2})),
        calls(ToolCall("answer", argument="5")),
    )
    assert [message.role for message in first] == ["system", "user"]
    wrong, told = results[0].messages[:3], results[0].messages[3]
    assert told == Message("tool", "5", name="add", tool_call_id="x")
    assert [message.content.split(";")[0] for message in wrong] == [
        "add: argument 'left' must be integer, got 'two'",
        "there is no tool 'subtract'",
        "add: the call is not closed",
    ]
    assert "missing argument 'right'" in results[1].messages[0].content
    assert results[2] == StepResult(reward=1.0, terminated=True)


def test_a_turn_without_calls_is_the_environment_s_to_answer() -> None:
    _, results = play(make_sums, SUM, *[Message("assistant", "5?")] * 3)
    assert results[0] == StepResult((Message("user", "Call a tool."),), reward=-0.5)
    assert results[2] == StepResult(reward=-0.5, truncated=True)


def test_what_a_tool_raises_fails_the_episode() -> None:
    with pytest.raises(WorkerProcessError, match="OSError: no disk"):
        play(make_sums, SUM, calls(ToolCall("fail")))


def test_tools_are_described_before_a_run() -> None:
    tools = {tool.name: tool for tool in describe_aviary_tools(make_story, STORY)}
    assert set(tools) == {"print_story", "cast_float", "cast_int", "get_random_int"}
    assert tools["print_story"].parameters["required"] == ["story"]
    assert tools["print_story"].parameters["properties"]["story"]["description"]
    assert tools["print_story"].types == {"story": str}


def test_it_keeps_the_protocol() -> None:
    probes = (calls(ToolCall("print_story", {"story": "x"})), Message("assistant", "no"))
    make = in_asyncio(partial(AviaryEnv, make_story), processes=2)
    trio.run(lambda: check_env(make, [STORY], probes=probes))
