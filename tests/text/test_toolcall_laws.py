"""Laws of the tool-call parsers, for every format and whatever is sampled."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.envs import CallStatus
from headrace.pipeline.text.toolcalls import FORMATS, ParsedTurn, ToolCallParser, parse_turn
from headrace.pipeline.text.toolcalls.grammar import Scanner
from tests.text.corpus import EVERYTHING, StandIn
from tests.text.spelling import SPELLINGS, UNSPEAKABLE, Call, ids_of, markup, spell, value

MARKERS = [*EVERYTHING.specials]
TEXT_ONLY = StandIn(["<s>", "</s>"])  # where all markers are text

NAMES = st.sampled_from(["add", "get_weather", "f", "Search2"])
KEYS = st.sampled_from(["a", "b", "city", "_limit", "name", "arguments", "parameters"])
# Texts that look like the formats' markup, quotes or escapes, beside any other.
PIECES = [*MARKERS, '"', "'", "\\", "\n", "{", "}", "[]", ",", ":", "```", "</parameter>"]
TEXTS = st.text(max_size=6) | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
CALLS = st.lists(
    st.tuples(NAMES, st.dictionaries(KEYS, VALUES, max_size=3)), min_size=1, max_size=3
)

EVERY_FORMAT = pytest.mark.parametrize("name", FORMATS)
FEW = settings(max_examples=6)


def schema_of(content: Any) -> Mapping[str, Any]:
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean"}
    kinds |= {list: "array", dict: "object", type(None): "null"}
    return {"type": kinds[type(content)]}


def tools_for(calls: Sequence[Call]) -> list[Mapping[str, Any]]:
    """Return schemas that say of each argument its type, for calls of different names."""
    return [
        {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: schema_of(content) for key, content in arguments.items()},
            },
        }
        for name, arguments in calls
    ]


def one_of_each_name(calls: Sequence[Call]) -> list[Call]:
    return list(dict(calls).items())


def can_be_spelled(name: str, calls: Sequence[Call]) -> bool:
    values = [content for _, arguments in calls for content in arguments.values()]
    texts = [content for content in values if isinstance(content, str)]
    return not any(mark in text for mark in UNSPEAKABLE.get(name, ()) for text in texts)


def parse(name: str, ids: Sequence[int], finish: str = "stop", **options: Any) -> ParsedTurn:
    return parse_turn(ids, FORMATS[name], EVERYTHING, finish=finish, **options)


def run(turn: ParsedTurn) -> list[Call]:
    """Return the calls that would be run."""
    return [(call.name, call.arguments) for call in turn.calls if call.status == "ok"]


@EVERY_FORMAT
@given(CALLS)
@FEW
def test_what_is_written_is_read(name: str, drawn: list[Call]) -> None:
    """Law: calls survive being written in a format, whatever their values look like."""
    calls = one_of_each_name(drawn)
    assume(can_be_spelled(name, calls))
    ids = ids_of(spell(name, calls), EVERYTHING)
    turn = parse(name, ids, tools=tools_for(calls))
    assert run(turn) == calls
    assert len(turn.calls) == len(calls)
    assert (turn.content, turn.reasoning) == ("", "")


JSON_FORMATS = ["hermes", "deepseek_v3", "deepseek_v31", "mistral_v3", "mistral_v11", "kimi_k2",
                "harmony"]  # fmt: skip


@pytest.mark.parametrize("name", JSON_FORMATS)
@given(CALLS)
@FEW
def test_markers_inside_json_strings_end_nothing_even_as_tokens(
    name: str, calls: list[Call]
) -> None:
    """Templates write an argument's `</tool_call>` as that token; it is a part of the string."""
    ids = [index for _, text in spell(name, calls) for index in EVERYTHING.markup(text)]
    assert run(parse(name, ids)) == calls


TEXT_FORMATS = sorted(set(FORMATS) - {"gemma4", "kimi_k3", "harmony"})


@pytest.mark.parametrize("name", TEXT_FORMATS)
@given(CALLS)
@settings(max_examples=5)
def test_without_tokens_for_them_markers_are_found_as_text(name: str, drawn: list[Call]) -> None:
    calls = [(tool, dict.fromkeys(arguments, 7)) for tool, arguments in one_of_each_name(drawn)]
    ids = ids_of(spell(name, calls), TEXT_ONLY)
    turn = parse_turn(ids, FORMATS[name], TEXT_ONLY, tools_for(calls))
    assert run(turn) == calls


@EVERY_FORMAT
@given(st.data(), CALLS)
@FEW
def test_no_call_is_taken_from_a_text_that_was_cut_off(
    name: str, data: st.DataObject, drawn: list[Call]
) -> None:
    """Law: of a turn that ends early, only calls that were complete before it are run."""
    calls = one_of_each_name(drawn)
    assume(can_be_spelled(name, calls))
    ids = ids_of(spell(name, calls), EVERYTHING)
    cut = data.draw(st.integers(0, len(ids) - 1))
    for finish in ("length", "stop"):
        turn = parse(name, ids[:cut], finish, tools=tools_for(calls))
        found = run(turn)
        assert found == calls[: len(found)]
        complete = [call for call in turn.calls if call.status == "ok"]
        assert all(call.token_span[1] <= cut for call in complete)
    whole = parse(name, ids, tools=tools_for(calls)).calls[-1].token_span[1]
    if cut < whole:
        assert len(run(parse(name, ids[:cut], "length", tools=tools_for(calls)))) < len(calls)


REASONING = {
    **{name: found.reasoning[0][0] for name, found in FORMATS.items() if found.reasoning},
    "harmony": "<|channel|>analysis<|message|>",
}


@pytest.mark.parametrize("name", REASONING)
@given(CALLS, st.text(max_size=5), st.sampled_from(["stop", "length"]))
@FEW
def test_no_call_is_taken_from_reasoning_that_never_ends(
    name: str, calls: list[Call], text: str, finish: str
) -> None:
    """Law: calls inside of unclosed reasoning are reported and never run."""
    assume(can_be_spelled(name, calls))
    spelled = spell(name, calls)
    ids = ids_of([*markup(REASONING[name]), *value(text), *spelled], EVERYTHING)
    turn = parse(name, ids, finish)
    assert {call.status for call in turn.calls} == {"in_reasoning"}
    assert turn.content == ""
    prompted = parse(name, ids_of([*value(text), *spelled], EVERYTHING), finish,
                     prompt=EVERYTHING.markup(REASONING[name]))  # fmt: skip
    assert {call.status for call in prompted.calls} == {"in_reasoning"}


# Ids of the vocabulary and others, so that markers are often there and in any order.
SNIPPETS = [
    '{"name": "f", "arguments": {', "}}", '"', "\\", "f(a=1)", "[", "function", " ", "\n", "<",
    "</", "<function=f>", "<parameter=a>\n", "\n</parameter>", "call:f{", "```tool_code\n",
    "\n```", "functions.f:0", "\n```json\n", 'name="f">', "invoke ", "think", "tools", "call ",
    'tool="f"', "argument ", "analysis", "commentary to=functions.f",
]  # fmt: skip
IDS = st.lists(
    st.one_of(
        st.sampled_from([[EVERYTHING.specials[text]] for text in MARKERS]),
        st.sampled_from([EVERYTHING.plain(text) for text in SNIPPETS]),
        st.integers(0, 255).map(lambda byte: [byte]),
        st.integers().map(lambda index: [index]),
    ),
    max_size=30,
).map(lambda runs: [index for run in runs for index in run])


@EVERY_FORMAT
@given(IDS, st.data())
@settings(max_examples=15)
def test_any_ids_give_one_turn_however_they_are_cut(
    name: str, ids: list[int], data: st.DataObject
) -> None:
    """Law: never an exception, and any split of the ids gives the same turn."""
    check_one_turn(name, ids, data)


@pytest.mark.slow
@EVERY_FORMAT
@given(IDS, st.data())
@settings(max_examples=100)
def test_many_ids_give_one_turn_however_they_are_cut(
    name: str, ids: list[int], data: st.DataObject
) -> None:
    """The same law, searched for longer."""
    check_one_turn(name, ids, data)


def check_one_turn(name: str, ids: list[int], data: st.DataObject) -> None:
    finish = data.draw(st.sampled_from(["stop", "length"]))
    parser = ToolCallParser(FORMATS[name], EVERYTHING)
    parser.feed(ids)
    turn = parser.finish(finish)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        parser.feed(ids[start:end])
    assert parser.finish(finish) == turn
    for index in ids:
        parser.feed([index])
    assert parser.finish(finish) == turn
    for call in turn.calls:
        assert call.status in get_args(CallStatus)
        assert call.status == "ok" or (call.arguments == {} and call.problem)
        assert json.loads(json.dumps(call.arguments, allow_nan=False)) == call.arguments
        start, end = call.token_span
        assert 0 <= start < end <= len(ids)


# Repeated, these provoke all that is read again.
PROVOCATIONS = [
    '<tool_call>"</tool_call>', '<tool_call>\\"</tool_call>', "<think><tool_call>", "<|start|>",
    "\n<", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", '[TOOL_CALLS]"', "[f(",
    '<|open|>tools<|sep|><|open|>call "', "<arg_value></tool_call>",
]  # fmt: skip


@EVERY_FORMAT
def test_the_work_grows_with_the_length_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: O(n), counted in characters that are searched, for turns that provoke re-reading."""
    searched = 0
    find = Scanner.find

    def counted(scanner: Scanner, text: str, start: int, *, final: bool) -> tuple[int, str]:
        nonlocal searched
        end, marker = find(scanner, text, start, final=final)
        searched += (end - start + len(marker)) if marker else len(text) - start
        return end, marker

    monkeypatch.setattr(Scanner, "find", counted)
    parser = ToolCallParser(FORMATS[name], EVERYTHING)
    for unit in PROVOCATIONS:
        work = []
        for times in (20, 40, 80):
            searched = 0
            ids = EVERYTHING.markup(unit) * times
            for start in range(0, len(ids), 3):
                parser.feed(ids[start : start + 3])
            parser.finish("stop")
            work.append(searched)
        # Twice the length costs twice the work, but for the looks ahead, each of which is bounded.
        assert work[2] - work[1] <= 2 * (work[1] - work[0]) + 1000


def test_every_format_is_spelled() -> None:
    assert SPELLINGS.keys() == FORMATS.keys()
