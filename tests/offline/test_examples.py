"""Rows become exactly the ids of a rollout, and only the assistant's turns are learnt."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from headrace.envs.messages import Message, ToolCall
from headrace.pipeline.offline.examples import (
    Reader,
    Renderers,
    item_tokens,
    read_conversation,
    read_judged,
    read_pair,
)
from headrace.pipeline.offline.rows import BadRow, Row
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from tests.text.templates import KEEPING, SPECIALS, STRIPPING
from tests.text.vocabularies import definition, entry

TOKENIZER = HubTokenizer(definition("byte-level", tuple(entry(text) for text in SPECIALS)))
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1+0? <|im_end|>"},
    {"role": "assistant", "content": "", "reasoning_content": "Use it.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "1"},
    {"role": "assistant", "content": "It is 1."},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Welcome"},
]


def chat(template, tools):
    source = TemplateSource(template, {"bos_token": "<s>", "eos_token": "</s>"})
    return TemplateRenderer(TOKENIZER, source, tools)


def learnt(item):
    """The texts of the runs of learnt tokens."""
    edges = np.flatnonzero(np.diff(item.loss_mask.astype(int))) + 1
    runs = np.split(np.arange(len(item.tokens)), edges)
    return [TOKENIZER.decode(item.tokens[run].tolist()) for run in runs if item.loss_mask[run[0]]]


def test_with_a_template_like_qwens_only_the_assistants_turns_are_learnt():
    renderers = Renderers(partial(chat, KEEPING))
    tools = [{"type": "function", "function": ADD}]
    item = read_conversation(Row("x:1", {"messages": MESSAGES, "tools": tools}), renderers)
    assert learnt(item) == [
        '<think>\nUse it.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n'
        "</tool_call><|im_end|>",
        "It is 1.<|im_end|>",
        "Welcome<|im_end|>",
    ]
    text = TOKENIZER.decode(item.tokens.tolist())
    assert text.startswith('<|im_start|>system\nBe brief.\nTools:\n{"type": "function"')
    assert "<tool_response>\n1\n</tool_response><|im_end|>\n<|im_start|>assistant\n" in text
    # A user can't close a turn by its text: one token closes each of the seven messages.
    end = TOKENIZER.specials["<|im_end|>"]
    assert np.count_nonzero(item.tokens == end) == 7


def test_law_1_the_ids_are_those_of_prompt_turn_delta_turn():
    renderer = chat(STRIPPING, [ADD])
    first, call = Message("user", "1+0?"), Message("assistant", "", (ToolCall("add", {"a": 1}),))
    answer, last = Message("tool", "1", name="add"), Message("assistant", "1")
    rows = [
        {"role": "user", "content": "1+0?"},
        {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "1"},
    ]
    item = read_conversation(
        Row("x:1", {"messages": rows, "tools": [ADD]}), Renderers(partial(chat, STRIPPING))
    )
    expected = renderer.prompt([first]) + renderer.turn(call)
    expected += renderer.delta([answer]) + renderer.turn(last)
    assert item.tokens.tolist() == expected


def characters(tools):
    return CharacterRenderer(TextConfig("0123456789+"))


PLAIN = Renderers(characters)


def test_the_answers_of_a_pair_share_their_prompt_and_labels_choose_a_side():
    judged = read_pair(Row("x:1", {"prompt": "1+2", "chosen": "3", "rejected": "44"}), PLAIN)
    chosen, rejected = judged.items
    assert chosen.loss_mask.tolist() == [False] * 5 + [True] * 2
    assert rejected.loss_mask.tolist() == [False] * 5 + [True] * 3
    np.testing.assert_array_equal(chosen.tokens[:5], rejected.tokens[:5])
    bad = read_judged(Row("x:1", {"prompt": "1", "completion": "2", "label": False}), PLAIN)
    assert bad.chosen is None
    assert bad.rejected is not None


def test_what_the_alphabet_or_the_format_cannot_say_names_the_row():
    with pytest.raises(BadRow, match=r"x:9: .*mend the row, or leave it out"):
        read_conversation(Row("x:9", {"prompt": "é", "completion": "1"}), PLAIN)
    two = [{"role": "user", "content": "1"}, *[{"role": "assistant", "content": "1"}] * 2]
    with pytest.raises(BadRow, match=r"x:9: .*must follow a message of the environment"):
        read_conversation(Row("x:9", {"messages": two}), PLAIN)


@pytest.mark.parametrize("too_long", ["skip", "error"])
def test_rows_that_do_not_fit_are_counted_or_refused(too_long):
    reader = Reader(partial(read_conversation, renderers=PLAIN), item_tokens, 7, too_long)
    rows = [Row(f"x:{n}", {"prompt": "1" * n, "completion": "2"}) for n in (1, 3, 4)]
    if too_long == "skip":
        taken = reader.take(rows)
        assert (len(taken.examples), taken.skipped) == (2, 1)
    else:
        with pytest.raises(BadRow, match=r"x:4: 8 tokens don't fit.*row_tokens \(7\)"):
            reader.take(rows)


@pytest.mark.parametrize("bad", [b"{", {"prompt": "1"}, {"prompt": "x", "completion": "1"}])
def test_rows_that_cannot_be_read_are_counted_or_refused(bad):
    rows = [Row("x:1", {"prompt": "1", "completion": "2"}), Row("x:2", bad)]
    reader = Reader(partial(read_conversation, renderers=PLAIN), item_tokens, 7, "skip")
    with pytest.raises(BadRow, match="x:2: "):
        reader.take(rows)
    taken = replace(reader, unusable="skip").take(rows)
    assert (len(taken.examples), taken.skipped) == (1, 1)
