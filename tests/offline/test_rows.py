"""Rows of every usual form are read, and a bad one is named with what it should be."""

import pytest

from headrace.envs.messages import Message, ToolCall
from headrace.pipeline.offline.rows import BadRow, Row, conversation_of, judged_of, pair_of

USER, ANSWER = {"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}
WRONG = {"role": "assistant", "content": "4"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        }
    ],
}
TOOL = {"role": "tool", "content": "3", "tool_call_id": "c1"}
SCHEMA = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def row(**table):
    return Row("data.jsonl:7", table)


def test_all_turns_of_messages_are_learnt_and_calls_and_tools_are_read():
    found = conversation_of(row(messages=[USER, CALL, TOOL, ANSWER], tools=[SCHEMA]))
    assert found.learnt == (False, True, False, True)
    assert found.messages[1].tool_calls == (ToolCall("add", {"a": 1, "b": 2}, id="c1"),)
    assert found.messages[2] == Message("tool", "3", name="add", tool_call_id="c1")
    assert found.tools == (SCHEMA["function"],)


def test_answers_without_ids_are_named_in_the_calls_order():
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("a", "b")]
    messages = [USER, {"role": "assistant", "tool_calls": calls}]
    messages += [{"role": "tool", "content": "x"}, {"role": "tool", "content": "y"}, ANSWER]
    found = conversation_of(row(messages=messages))
    assert [message.name for message in found.messages if message.role == "tool"] == ["a", "b"]


def test_of_a_prompt_and_a_completion_only_the_completion_is_learnt():
    plain = conversation_of(row(prompt="1+2", completion="3"))
    assert plain.messages == (Message("user", "1+2"), Message("assistant", "3"))
    assert plain.learnt == (False, True)
    listed = conversation_of(row(prompt=[USER, WRONG, USER], completion=[ANSWER]))
    assert listed.learnt == (False, False, False, True)


def test_a_message_of_weight_0_is_not_learnt_and_reasoning_and_parts_are_read():
    thought = {**ANSWER, "reasoning_content": "easy", "content": [{"type": "text", "text": "3"}]}
    found = conversation_of(row(messages=[USER, {**WRONG, "weight": 0}, USER, thought]))
    assert found.learnt == (False, False, False, True)
    assert found.messages[-1] == Message("assistant", "3", reasoning="easy")


@pytest.mark.parametrize(
    "table",
    [
        {"prompt": "1+2", "chosen": "3", "rejected": "4"},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [WRONG]},
        {"prompt": "1+2", "chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
        {"chosen": [USER, ANSWER], "rejected": [USER, WRONG]},
    ],
)
def test_pairs_of_every_form_are_the_same(table):
    chosen, rejected = pair_of(row(**table))
    assert chosen.messages == (Message("user", "1+2"), Message("assistant", "3"))
    assert rejected.messages == (Message("user", "1+2"), Message("assistant", "4"))
    assert chosen.learnt == rejected.learnt == (False, True)


def test_a_shared_first_turn_of_whole_conversations_is_not_learnt():
    start = [USER, WRONG, USER]
    chosen, rejected = pair_of(row(chosen=[*start, ANSWER], rejected=[*start, WRONG]))
    assert chosen.learnt == rejected.learnt == (False, False, False, True)


@pytest.mark.parametrize("label", [True, False, 1, 0])
def test_labels_and_pairs_are_judged(label):
    found = judged_of(row(prompt="1+2", completion="3", label=label))
    assert [side is not None for side in found] == [bool(label), not label]
    assert None not in judged_of(row(prompt="1+2", chosen="3", rejected="4"))


@pytest.mark.parametrize(
    ("read", "table", "message"),
    [
        (conversation_of, {"text": "hi"}, '"messages", or "prompt" and "completion".*\'text\''),
        (conversation_of, {"messages": []}, '"messages" must be a list of messages, got'),
        (conversation_of, {"messages": "hi"}, "must be a list of messages, got 'hi'"),
        (conversation_of, {"messages": [USER]}, "no message of the assistant"),
        (conversation_of, {"messages": [{"from": "human"}]}, 'message 1.*"role" and "content"'),
        (
            conversation_of,
            {"messages": [{**USER, "role": "human"}]},
            "must be one of system, user",
        ),
        (conversation_of, {"messages": [USER, {"role": "assistant"}]}, 'message 2.*needs a "cont'),
        (
            conversation_of,
            {"messages": [{**USER, "content": 3}]},
            '"content" must be a text, got 3',
        ),
        (conversation_of, {"messages": [{**USER, "content": [{"type": "image"}]}]}, "text.*only"),
        (conversation_of, {"messages": [{**USER, "tool_calls": [{"name": "f"}]}]}, "only the ass"),
        (conversation_of, {"messages": [{**ANSWER, "tool_calls": [{}]}]}, "a tool call needs"),
        (
            conversation_of,
            {"messages": [{**ANSWER, "tool_calls": [{"name": "f", "arguments": "{"}]}]},
            "arguments of a tool call are no JSON",
        ),
        (conversation_of, {"messages": [USER, ANSWER], "tools": "{"}, '"tools" is no JSON'),
        (conversation_of, {"messages": [USER, ANSWER], "tools": [{}]}, "a tool needs"),
        (conversation_of, {"prompt": "a", "completion": [USER]}, "no message of|must begin with"),
        (pair_of, {"prompt": "a", "chosen": "b"}, '"chosen" and "rejected", and mostly "prompt"'),
        (pair_of, {"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal; leave the row out"),
        (pair_of, {"prompt": "a", "chosen": [USER, ANSWER], "rejected": "b"}, "must begin with"),
        (judged_of, {"prompt": "a", "completion": "b"}, '"completion" and "label"'),
        (judged_of, {"prompt": "a", "completion": "b", "label": "yes"}, "must be true or false"),
    ],
)
def test_a_bad_row_says_where_it_is_and_what_it_should_be(read, table, message):
    with pytest.raises(BadRow, match=f"(?s)data.jsonl:7.*{message}"):
        read(row(**table))
