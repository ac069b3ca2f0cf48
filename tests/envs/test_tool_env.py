"""An environment of tools: every call is answered, and `finish` ends the episode."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import EpisodeRecord, Message, Task, ToolCall, ToolEnv, check_env, tool
from headrace.envs.messages import CallStatus

TASK = Task("t", {"question": "1+1?"})
STATUSES: list[CallStatus] = ["ok", "malformed", "unclosed", "over_limit"]


@tool
def add(a: int, b: int) -> int:
    return a + b


def ask(task):
    return [Message("user", task.data["question"])]


def make():
    return ToolEnv((add,), ask, max_calls=3)


def turn(*calls, content=""):
    return Message("assistant", content, tuple(calls))


def talk(*turns):
    async def main():
        async with make() as env:
            await env.reset(TASK, 0)
            return [await env.step(each) for each in turns]

    return trio.run(main)


def call(name, /, *, call_id="", status="ok", **arguments):
    return ToolCall(name, arguments, id=call_id, status=status)


def test_it_keeps_the_contract():
    trio.run(check_env, make, [TASK])


def test_a_turn_s_calls_are_answered_in_order_and_counted():
    (result,) = talk(turn(call("add", call_id="a", a=1, b=2), call("add", call_id="b", a=1)))
    assert [(m.role, m.name, m.tool_call_id, m.content) for m in result.messages] == [
        ("tool", "add", "a", "3"),
        ("tool", "add", "b", "add: missing argument 'b'; write add(a, b)"),
    ]
    assert result.info == {"tool_calls": 2.0, "tool_errors": 1.0, "finished": 0.0}


def test_finish_ends_the_episode_and_its_argument_is_the_answer():
    said = turn(call("add", a=1, b=1), call("finish", answer="2"), content="done")
    (result,) = talk(said)
    assert (result.terminated, result.messages) == (True, ())
    assert result.info["finished"] == 1.0
    assert EpisodeRecord(TASK, (*ask(TASK), said)).answer == "2"


def test_a_wrong_call_of_finish_is_answered_and_the_episode_goes_on():
    wrong = [
        call("finish"), call("finish", answer=2),
        ToolCall("finish", status="unclosed"),
    ]  # fmt: skip
    (result,) = talk(turn(*wrong))
    assert not result.terminated
    assert result.messages[0].content == "finish: missing argument 'answer'; write finish(answer)"
    assert EpisodeRecord(TASK, (turn(*wrong, content="text"),)).answer == "text"


def test_a_turn_without_calls_ends_it_too():
    (result,) = talk(turn(content="2"))
    assert result.terminated
    assert result.info["finished"] == 0.0


def test_too_many_calls_are_not_run():
    first, second = talk(turn(*[call("add", a=1, b=1)] * 3), turn(call("add", a=1, b=1)))
    assert len(first.messages) == 3
    assert second.truncated


def test_names_are_different():
    @tool
    def finish(answer: str) -> str:
        return answer

    for tools in ((add, add), (finish,)):
        with pytest.raises(ValueError, match="different names and none 'finish'"):
            ToolEnv(tools, ask)


@given(
    st.lists(
        st.builds(
            ToolCall,
            st.sampled_from(["add", "finish", "other", ""]),
            st.dictionaries(st.sampled_from(["a", "b", "answer"]), st.integers() | st.text()),
            st.sampled_from(STATUSES),
            argument=st.none() | st.text(),
        ),
        max_size=3,
    )
)
def test_every_call_has_one_answer_whatever_it_is(calls):
    (result,) = talk(turn(*calls))
    assert result.terminated or len(result.messages) == len(calls)
