"""What becomes of single turns: every status, its words, and what is never repaired."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.envs import ToolCall
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.text.toolcalls import (
    FORMATS,
    CallLimits,
    ParsedTurn,
    ToolCallParser,
    parse_turn,
)
from headrace.pipeline.types import FinishReason
from tests.text.corpus import EVERYTHING

ADD = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}},
    },
}


def parse(name: str, text: str, finish: str = "stop", **options: Any) -> ParsedTurn:
    ids = EVERYTHING.markup(text)
    return parse_turn(ids, FORMATS[name], EVERYTHING, [ADD], finish=finish, **options)


def only_call(name: str, text: str, finish: str = "stop") -> ToolCall:
    (call,) = parse(name, text, finish).calls
    return call


def brief(turn: ParsedTurn) -> list[tuple[str, str]]:
    return [(call.status, call.name) for call in turn.calls]


def called(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


CALL = "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
HEADER = "<|channel|>commentary to=functions.add"
K3 = "<|open|>tools<|sep|><|open|>call "
INVOKE = '<｜DSML｜tool_calls><｜DSML｜invoke name="add"><｜DSML｜parameter name="a"'
INVOKED = "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>"
WRONG = [
    ("hermes", '<tool_call>{"name": "add", "arguments": {', "unclosed", ""),
    ("hermes", "<tool_call>", "unclosed", ""),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}}', "unclosed", ""),
    ("hermes", called('{"name": "add" "arguments": {}}'), "invalid_json", ""),
    ("hermes", called('{"name": "add", "arguments": {}}}'), "invalid_json", ""),
    ("hermes", called('{"name": "add", "arguments": {"a": NaN}}'), "invalid_json", ""),
    ("hermes", called('{"name": "add", "arguments": {"a": 1e999}}'), "invalid_json", ""),
    ("hermes", called('{"name": "add", "arguments": {"a": "\\ud800"}}'), "invalid_json", ""),
    ("hermes", called("{'name': 'add', 'arguments': {}}"), "invalid_json", ""),
    ("hermes", called('{"arguments": {}}'), "missing_name", ""),
    ("hermes", called('{"name": 7, "arguments": {}}'), "missing_name", ""),
    ("hermes", called('{"name": "add"}'), "bad_arguments", "add"),
    ("hermes", called('{"name": "add", "arguments": "{}"}'), "bad_arguments", "add"),
    ("hermes", called('{"name": "add", "arguments": [1]}'), "bad_arguments", "add"),
    ("hermes", called('{"name": "add", "arguments": {"a": 1, "a": 2}}'), "duplicate_key", ""),
    ("hermes", called("[]"), "malformed", ""),
    ("hermes", called("[1]"), "malformed", ""),
    ("hermes", "<think>" + called('{"name": "add", "arguments": {}}'), "in_reasoning", "add"),
    ("qwen3_coder", called("<function=add>"), "malformed", ""),
    ("qwen3_coder", called("<function=></function>"), "missing_name", ""),
    ("qwen3_coder", called("add(1)"), "malformed", ""),
    ("qwen3_coder", "<function=add><parameter=>1</parameter></function>", "malformed", "add"),
    ("glm", called("add<arg_key></arg_key><arg_value>1</arg_value>"), "malformed", "add"),
    ("qwen3_coder", called("<function=add>x</function>"), "malformed", ""),
    (
        "qwen3_coder",
        "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>",
        "duplicate_key",
        "add",
    ),
    ("qwen3_coder", "<function=add>\n<parameter=a>\n1\n</parameter>", "unclosed", ""),
    ("glm", called("add<arg_key>a</arg_key>"), "malformed", "add"),
    ("glm", called("add<arg_value>1</arg_value>"), "malformed", "add"),
    ("glm", called(""), "missing_name", ""),
    ("glm", called("add and more"), "malformed", ""),
    ("llama_json", '{"name": "add", "parameters": {"a": 1}} and more', "invalid_json", ""),
    ("llama_json", '{"name": "add", "parameters": {"a": 1', "invalid_json", ""),
    ("llama_json", "<|python_tag|>print(1)", "invalid_json", ""),
    ("llama_pythonic", "[add(1)]", "bad_arguments", "add"),
    ("llama_pythonic", "[add(**{})]", "bad_arguments", "add"),
    ("llama_pythonic", "[add(a=other())]", "bad_arguments", "add"),
    ("llama_pythonic", "[add(a=1, b=__import__('os'))]", "bad_arguments", "add"),
    ("llama_pythonic", "[add(a={1: 2})]", "bad_arguments", "add"),
    ("llama_pythonic", "[add(a={'x': 1, 'x': 2})]", "duplicate_key", "add"),
    ("llama_pythonic", "[add(a=1", "malformed", ""),
    ("llama_pythonic", "[add(a=1); import os]", "malformed", ""),
    ("gemma3", "```tool_code\nadd(a=1)", "unclosed", ""),
    ("gemma3", "```tool_code\nx = add(a=1)\n```", "malformed", ""),
    ("gemma3", "```tool_code\n\n```", "malformed", ""),
    ("gemma4", "<|tool_call>call:add{a:}<tool_call|>", "invalid_json", "add"),
    ("gemma4", "<|tool_call>call:add{a:1<tool_call|>", "malformed", "add"),
    ("gemma4", "<|tool_call>call:add{a:text}<tool_call|>", "invalid_json", "add"),
    ("gemma4", '<|tool_call>call:add{a:"text"}<tool_call|>', "malformed", "add"),
    ("gemma4", "<|tool_call>call:add{a:1,a:2}<tool_call|>", "duplicate_key", "add"),
    ("gemma4", "<|tool_call>call:{}<tool_call|>", "missing_name", ""),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜>" + CALL.replace("{}", "[]"),
        "bad_arguments",
        "add",
    ),
    ("deepseek_v31", CALL, "malformed", ""),
    ("deepseek_v31", "<｜tool▁calls▁begin｜>add{}<｜tool▁calls▁end｜>", "malformed", ""),
    ("deepseek_v31", "<｜tool▁calls▁begin｜>", "unclosed", ""),
    ("deepseek_v4", INVOKE + ' string="false">x' + INVOKED, "invalid_json", "add"),
    ("deepseek_v4", INVOKE + ">1" + INVOKED, "malformed", "add"),
    ("mistral_v3", '[TOOL_CALLS] {"name": "add"', "invalid_json", ""),
    ("mistral_v11", "[TOOL_CALLS]add{}", "malformed", ""),
    ("mistral_v11", "[TOOL_CALLS][ARGS]{}", "missing_name", ""),
    ("mistral_v11", '[TOOL_CALLS]add[ARGS]{"a": 1} ok?', "invalid_json", "add"),
    ("kimi_k2", "<|tool_call_begin|>functions.add:0<|tool_call_end|>", "malformed", ""),
    ("kimi_k3", K3 + 'index="1"<|sep|><|close|>call<|sep|>', "missing_name", ""),
    (
        "kimi_k3",
        K3 + 'tool="add"<|sep|><|open|>argument key="a"<|sep|>1<|close|>argument<|sep|>'
        "<|close|>call<|sep|>",
        "malformed",
        "add",
    ),
    ("harmony", HEADER, "unclosed", "add"),
    ("harmony", HEADER + "<|message|>{", "invalid_json", "add"),
    ("harmony", "<|channel|>commentary to=python<|message|>print(1)", "invalid_json", "python"),
    ("harmony", HEADER + "<|message|>7<|call|>", "bad_arguments", "add"),
]


@pytest.mark.parametrize(("name", "text", "status", "tool"), WRONG)
def test_wrong_calls(name: str, text: str, status: str, tool: str) -> None:
    call = only_call(name, text)
    assert (call.status, call.name) == (status, tool)
    assert call.arguments == {}
    assert call.problem
    assert call.raw in text


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("hermes", called('[{"name": "add", "arguments": {"a": 1}}]'), {"a": 1}),
        ("hermes", called('{"name":"add","arguments":{"a":"\\u00e9"}}'), {"a": "é"}),
        ("qwen3_coder", "<function=add><parameter=a>7</parameter></function>", {"a": 7}),
        ("qwen3_coder", "<function=add>\n<parameter=b>\n\n</parameter>\n</function>", {"b": ""}),
        ("qwen3_coder", "<function=add>\n<parameter=b>\n</parameter>\n</function>", {"b": ""}),
        ("qwen3_coder", "<function=add><parameter=a>07</parameter></function>", {"a": "07"}),
        ("qwen3_coder", "<function=add><parameter=b>null</parameter></function>", {"b": None}),
        ("qwen3_coder", "<function=add><parameter=c>7</parameter></function>", {"c": "7"}),
        ("llama_pythonic", "[add(a=-1, b='it\\'s')]", {"a": -1, "b": "it's"}),
        ("llama_pythonic", "[add(b='\\d')]", {"b": "\\d"}),
        ("gemma3", "I will.\n```tool_code\nadd(a=1)\n```\nDone.", {"a": 1}),
        ("mistral_v11", "[TOOL_CALLS]add[CALL_ID]x1[ARGS]{}", {}),
        ("deepseek_v4", '<｜DSML｜tool_calls><｜DSML｜invoke name="add"/>', {}),
        ("harmony", " to=functions.add<|channel|>analysis<|message|>{}<|call|>", {}),
    ],
)
def test_right_calls(name: str, text: str, arguments: Mapping[str, Any]) -> None:
    call = only_call(name, text)
    assert (call.status, call.name, call.arguments) == ("ok", "add", arguments)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "I could call add(1) or write {}"),
        ("llama_json", '{"name": "Bob", "age": 3}'),
        ("llama_json", '{"sum": 3}'),
        ("llama_json", 'Here: {"name": "add", "parameters": {}}'),
        ("llama_pythonic", "[1] See the manual."),
        ("llama_pythonic", "Use [add(a=1)] for that."),
        ("gemma3", "```python\nadd(a=1)\n```"),
        ("mistral_v11", "call: add[ARGS]"),
    ],
)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    assert parse(name, text) == ParsedTurn(content=text)
    assert parse(name, text, "length") == ParsedTurn(content=text)


def test_a_marker_spelled_with_ordinary_tokens_is_text() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    turn = parse_turn(EVERYTHING.plain(text), FORMATS["hermes"], EVERYTHING)
    assert turn == ParsedTurn(content=text)


def test_a_quote_that_is_never_closed_costs_its_own_call_only() -> None:
    broken = '<tool_call>{"name": "add, "arguments": {}}</tool_call>'
    right = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    turn = parse("hermes", f"a{broken}b{right}c")
    assert brief(turn) == [("malformed", ""), ("ok", "add")]
    assert [call.raw for call in turn.calls] == [broken, right]
    assert turn.content == "abc"
    assert brief(parse("hermes", f"a{broken}b{right}c", "length")) == [("unclosed", "")]


def test_a_quote_that_is_never_closed_leaves_the_section_of_calls_open() -> None:
    broken = CALL.replace("{}", '{"a": "}')
    text = "<｜tool▁calls▁begin｜>" + broken + CALL + "<｜tool▁calls▁end｜>ok"
    turn = parse("deepseek_v31", text)
    assert brief(turn) == [("malformed", ""), ("ok", "add")]
    assert turn.content == "ok"


def test_an_opener_outside_of_quotes_ends_the_call_before_it() -> None:
    text = '<tool_call>{"name": "add"\n<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    assert brief(parse("hermes", text)) == [("unclosed", ""), ("ok", "add")]


def test_calls_in_reasoning_that_ends_are_thoughts() -> None:
    draft = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    turn = parse("hermes", f"<think>maybe {draft}?</think>No.")
    assert turn == ParsedTurn(reasoning=f"maybe {draft}?", content="No.")


def test_an_opener_may_end_the_reasoning_if_the_format_says_so() -> None:
    text = '<think>hm <tool_call>{"name": "add", "arguments": {}}</tool_call>'
    chosen = replace(FORMATS["hermes"], opener_ends_reasoning=True)
    turn = parse_turn(EVERYTHING.markup(text), chosen, EVERYTHING)
    assert (turn.reasoning, brief(turn)) == ("hm", [("ok", "add")])


@pytest.mark.parametrize(
    ("name", "prompt", "in_reasoning"),
    [
        ("hermes", "<|im_start|>assistant\n", False),
        ("hermes", "<|im_start|>assistant\n<think>\n", True),
        ("hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("gemma4", "<|turn>model\n<|channel>thought\n<channel|>", False),
        ("kimi_k3", '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>', True),
        ("kimi_k3", '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>', False),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>", True),
    ],
)
def test_the_prompt_may_open_the_reasoning(name: str, prompt: str, in_reasoning: bool) -> None:
    turn = parse(name, "words", prompt=EVERYTHING.markup(prompt))
    if name != "harmony":
        assert turn == (ParsedTurn("words") if in_reasoning else ParsedTurn(content="words"))
    else:
        assert turn.reasoning == "words"


def test_the_stop_token_is_no_content_and_makes_a_turn_whole() -> None:
    assert parse("hermes", "42<|im_end|>").content == "42"
    assert parse("hermes", "4<|im_end|>2<|im_end|>").content == "4<|im_end|>2"
    text = "[TOOL_CALLS]add[ARGS]{}"
    assert brief(parse("mistral_v11", text, "length")) == [("unclosed", "")]
    assert brief(parse("mistral_v11", text + "</s>", "length")) == [("ok", "add")]
    ids = EVERYTHING.markup(text)
    turn = parse_turn(ids, FORMATS["mistral_v11"], EVERYTHING, finish=FinishReason.LENGTH)
    assert brief(turn) == [("unclosed", "")]


def test_spans_and_ids() -> None:
    text = "ü<think>x</think>[TOOL_CALLS]add[CALL_ID]c7[ARGS]{}[TOOL_CALLS]add[ARGS]{}"
    turn = parse("mistral_v11", text)
    ids = EVERYTHING.markup(text)
    pieces = [text[text.index("[TOOL") : text.rindex("[TOOL")], text[text.rindex("[TOOL") :]]
    assert [call.raw for call in turn.calls] == pieces
    assert [call.id for call in turn.calls] == ["c7", ""]
    for call, piece in zip(turn.calls, pieces, strict=True):
        start, end = call.token_span or (0, 0)
        assert ids[start:end] == EVERYTHING.markup(piece)


def test_white_space_before_a_bare_call_is_no_part_of_it_however_it_comes() -> None:
    ids = EVERYTHING.markup(' \n{"name": "add", "parameters": {}}')
    parser = ToolCallParser(FORMATS["llama_json"], EVERYTHING)
    for cut in (0, 1, 2, 3):
        parser.feed(ids[:cut])
        parser.feed(ids[cut:])
        (call,) = parser.finish("stop").calls
        assert (call.raw[0], call.token_span) == ("{", (2, len(ids)))


def test_a_parser_begins_anew_after_each_turn() -> None:
    parser = ToolCallParser(FORMATS["hermes"], EVERYTHING)
    first = EVERYTHING.markup("<think>a</think>b<tool_call>")
    second = EVERYTHING.markup("c")
    for _ in range(2):
        parser.feed(first)
        turn = parser.finish("length")
        assert (turn.reasoning, turn.content, brief(turn)) == ("a", "b", [("unclosed", "")])
        parser.feed(second)
        assert parser.finish("stop") == ParsedTurn(content="c")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemma4", "<|tool_call>call:f{a:" + "[" * 99 + "]" * 99 + "}<tool_call|>"),
        ("llama_pythonic", "[f(a=" + "[" * 98 + "]" * 98 + ")]"),
        ("mistral_v11", '[TOOL_CALLS]f[ARGS]{"a": ' + "[" * 99 + "]" * 99 + "}"),
    ],
)
def test_the_deepest_calls_that_may_be_allowed(name: str, text: str) -> None:
    for depth, status in ((100, "ok"), (64, "over_limit")):
        limits = CallLimits(max_depth=depth)
        parser = ToolCallParser(FORMATS[name], EVERYTHING, limits=limits)
        parser.feed(EVERYTHING.markup(text))
        assert [call.status for call in parser.finish("stop").calls] == [status]


def test_limits() -> None:
    call = '<tool_call>{"name": "add", "arguments": {"a": [[1]]}}</tool_call>'
    ids = EVERYTHING.markup(call * 3)

    def statuses(**limits: int) -> list[str]:
        parser = ToolCallParser(FORMATS["hermes"], EVERYTHING, limits=CallLimits(**limits))
        parser.feed(ids)
        return [call.status for call in parser.finish("stop").calls]

    assert statuses() == ["ok", "ok", "ok"]
    assert statuses(max_calls=2) == ["ok", "ok", "over_limit"]
    assert statuses(max_depth=3) == ["over_limit"] * 3  # the call is an object of an object
    assert statuses(max_depth=4) == ["ok"] * 3
    assert statuses(max_characters=len(call) - 24) == ["over_limit"] * 3
    with pytest.raises(ConfigError, match="max_depth must be 1 to 100, got 0"):
        CallLimits(max_depth=0)


SPACES = " " * 20_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", called('{"name": "f", "arguments": ' + "[" * 5000)),
        ("hermes", called('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}")),
        ("llama_pythonic", "[f(a=" + "[" * 5000 + ")]"),
        ("llama_pythonic", "[f(a=" + "-" * 5000 + "1)]"),
        ("llama_pythonic", "[f(a=" + "x." * 5000 + "x)]"),
        ("llama_pythonic", "[f(a=" + "9" * 5000 + ")]"),
        ("llama_pythonic", "[f(a='\0')]"),
        ("llama_pythonic", "[f(a=1e999)]"),
        ("gemma4", "<|tool_call>call:f{a:" + "[" * 5000 + "<tool_call|>"),
        ("qwen3_coder", called(SPACES + "<function=f>" + SPACES + "x</function>")),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>" + SPACES + "<|tool_call_end|>",
        ),
    ],
)
def test_monsters_are_wrong_calls(name: str, text: str) -> None:
    assert only_call(name, text).status not in ("ok", "unclosed")
