"""Looking up values: what a search shows, and that nothing else helps."""

import math
import string
from dataclasses import replace
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Message, StepResult, Task, ToolCall, tool
from headrace.envs.lookup import (
    _KEYS,
    _STRIDE,
    CHAT,
    QUESTIONS,
    SPEC,
    TOOL,
    search,
    tasks,
    value_of,
)
from headrace.envs.questions import QuestionEnv

TASK = Task("kfa", {"key": "kfa"})
CALL = Message("assistant", "search(kfa)", (ToolCall("search", argument="kfa"),))
LETTERS = st.text(string.ascii_lowercase, min_size=1, max_size=3)


def play(*turns: Message, make=SPEC.make) -> list[StepResult]:
    async def episode() -> list[StepResult]:
        async with make() as env:
            await env.reset(TASK, 0)
            return [await env.step(turn) for turn in turns]

    return trio.run(episode)


@given(LETTERS)
def test_a_search_shows_the_first_entries_that_begin_with_the_query(query: str) -> None:
    entries = dict(entry.split("=") for entry in search(query).split(" "))
    assert len(entries) == (1 if len(query) == 3 else 3)
    assert list(entries) == sorted(entries)
    assert all(key.startswith(query) and len(key) == 3 for key in entries)
    assert all(value == value_of(key) for key, value in entries.items())


@pytest.mark.parametrize("query", ["", "kfaa", "KFA", "k1", " kfa", "kfa\n", "ä"])
def test_other_queries_find_none(query: str) -> None:
    wrong = Message("assistant", "", (ToolCall("search", argument=query),))
    first, second, end = play(wrong, CALL, Message("assistant", value_of("kfa")))
    assert first.messages == (Message("tool", "none", name="search"),)
    assert second.messages == (Message("tool", f"kfa={value_of('kfa')}", name="search"),)
    assert (end.reward, end.info) == (1.0, {"success": 1.0, "tool_used": 1.0})


def test_the_calls_of_a_turn_run_at_once_and_are_answered_in_order() -> None:
    began: list[str] = []
    both = trio.Event()

    @tool(deadline_seconds=5.0)
    async def wait(name: str) -> str:
        began.append(name)
        if len(began) == 2:
            both.set()
        await both.wait()
        return name

    calls = [ToolCall("wait", {"name": name}, id=name) for name in "ab"]
    turn = Message("assistant", "", (calls[0], ToolCall("fly"), calls[1]))
    make = partial(QuestionEnv, replace(QUESTIONS, tools=(wait,), max_calls=3))
    (result,) = play(turn, make=make)
    told = [(message.tool_call_id, message.content) for message in result.messages]
    assert told == [("a", "a"), ("", "none"), ("b", "b")]
    assert result.info == {"success": 0.0, "tool_used": 1.0}


def test_a_chat_model_reads_what_is_wrong_and_may_answer_in_a_sentence() -> None:
    wrong = Message("assistant", "", (ToolCall("search", {"key": "kfa"}),))
    right = Message("assistant", f"The value of kfa is {value_of('kfa')}.")
    first, end = play(wrong, right, make=CHAT.make)
    assert "unknown argument 'key'" in first.messages[0].content
    assert end.reward == 1.0
    (lost,) = play(Message("assistant", f"{value_of('kfa')} or 7"), make=CHAT.make)
    assert lost.reward == 0.0


def test_every_key_is_a_task_once_and_values_look_random() -> None:
    assert math.gcd(_STRIDE, _KEYS) == 1
    ids = {task.id for split in ("train", "eval") for task in tasks(split, _COUNT[split], 0)}
    assert len(ids) == _KEYS
    values = [int(value_of(key)) for key in sorted(ids)[:2000]]
    assert 100 <= min(values) <= 110
    assert 990 <= max(values) <= 999
    assert 530 < sum(values) / len(values) < 570


_COUNT = {"train": 15_818, "eval": 1_758}


def test_the_tool_describes_itself() -> None:
    assert TOOL.parameters["required"] == ["query"]
    assert "first letters" in TOOL.parameters["properties"]["query"]["description"]
