"""Tool-call parsers against the fixtures of canitoolcall, judged by that package's own checks."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from canitoolcall.checks import case_status, run_checks
from canitoolcall.results import Observation, Status

from headrace.pipeline.text.toolcalls import (
    FORMATS,
    CallEvent,
    Event,
    Format,
    ParsedTurn,
    TextEvent,
    ToolCallParser,
    parse_turn,
)
from tests.text.corpus import Case, as_result, cases

CASES = cases()
CORPUS = {
    "deepseek": 85,
    "gemma4": 48,
    "glm": 51,
    "gpt-oss": 51,
    "kimi": 49,
    "llama": 34,
    "mistral": 47,
    "qwen3-hermes": 50,
    "qwen3-xml": 54,
}

# Where the corpus wants what is never done here: a broken call repaired and run, or a call run
# that was written in reasoning which never ended.
KNOWN_DIFFERENCES = {
    "glm/glm47-missing-last-close-arg-value": (
        "The last value isn't closed, so where it ends is a guess: </tool_call> may be a part "
        "of it, as it is in glm47-marker-in-arguments."
    ),
    "qwen3-xml/llamacpp-q35-call-inside-think": (
        "The call stands in reasoning that never ends. With opener_ends_reasoning it is run."
    ),
}


def parse(case: Case, chosen: Format | None = None) -> ParsedTurn:
    return parse_turn(
        case.ids,
        chosen or case.format,
        case.tokenizer,
        case.fixture.tools,
        finish=case.finish,
        prompt=case.prompt,
    )


def passes(case: Case, turn: ParsedTurn) -> bool:
    seen = Observation(nonstream=as_result(turn), streams={})
    rows = run_checks(case.fixture, case.family, seen)
    return case_status(rows) in (Status.PASS, Status.SOFT_PASS)


def names(chosen: Sequence[Case]) -> set[str]:
    return {case.fixture.id for case in chosen}


def test_the_corpus_is_the_one_that_was_counted() -> None:
    assert Counter(case.fixture.family for case in CASES) == CORPUS
    assert set(FORMATS) - {case.format_name for case in CASES} == {"gemma3", "lfm2"}


@pytest.mark.parametrize("family", CORPUS)
def test_all_fixtures_pass_but_the_known_differences(family: str) -> None:
    chosen = [case for case in CASES if case.fixture.family == family]
    failed = names([case for case in chosen if not passes(case, parse(case))])
    assert failed == {name for name in KNOWN_DIFFERENCES if name.startswith(family + "/")}


def test_all_of_qwens_pass_where_an_opener_ends_the_reasoning() -> None:
    chosen = [case for case in CASES if case.fixture.family.startswith("qwen")]
    failed = [
        case
        for case in chosen
        if not passes(case, parse(case, replace(case.format, opener_ends_reasoning=True)))
    ]
    assert len(chosen) == 104
    assert failed == []


def test_the_known_differences_are_reported_and_not_run() -> None:
    found = {
        case.fixture.id: [call.status for call in parse(case).calls]
        for case in CASES
        if case.fixture.id in KNOWN_DIFFERENCES
    }
    assert found == {
        "glm/glm47-missing-last-close-arg-value": ["malformed"],
        "qwen3-xml/llamacpp-q35-call-inside-think": ["in_reasoning"],
    }


def test_what_was_cut_off_or_malformed_leaves_a_trace() -> None:
    """Each fixture that wants no call has a wrong attempt, or text, but not nothing."""
    for case in CASES:
        if case.fixture.expected_error is not None:
            turn = parse(case)
            assert [call for call in turn.calls if call.status == "ok"] == []
            assert turn.calls or turn.content or turn.reasoning, case.fixture.id


def test_chunks_change_nothing_and_events_add_up() -> None:
    """Law: any split of the ids gives the same turn, and its events are the turn."""
    rng = random.Random(0)
    for case in CASES:
        parser = ToolCallParser(
            case.format, case.tokenizer, case.fixture.tools, prompt=case.prompt
        )
        longest, at = rng.choice((1, 4, 40)), 0
        events: list[Event] = []
        while at < len(case.ids):
            size = rng.randint(1, longest)
            events += parser.feed(case.ids[at : at + size])
            at += size
        turn = parser.finish(case.finish)
        assert turn == parse(case), case.fixture.id
        assert sum_up([*events, *turn.last_events]) == turn, case.fixture.id


def sum_up(events: Sequence[Event]) -> ParsedTurn:
    texts = {"reasoning": "", "content": ""}
    for event in events:
        if isinstance(event, TextEvent):
            texts[event.kind] += event.text
    calls = tuple(event.call for event in events if isinstance(event, CallEvent))
    return ParsedTurn(texts["reasoning"].strip(), texts["content"].strip(), calls)
