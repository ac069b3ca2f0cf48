"""Tool calls in the fixtures' own ids, with the vocabulary of Qwen3."""

from dataclasses import replace

import pytest

from headrace.pipeline.text.toolcalls import ParsedTurn, parse_turn
from tests.text.corpus import cases
from tests.text.vocabularies import qwen

pytestmark = pytest.mark.slow


def without_spans(turn: ParsedTurn) -> ParsedTurn:
    return replace(turn, calls=tuple(replace(call, token_span=None) for call in turn.calls))


def test_the_real_vocabulary_gives_the_turns_of_the_stand_in() -> None:
    tokenizer = qwen()
    chosen = [case for case in cases() if case.fixture.reference_model.startswith("Qwen/Qwen3-")]
    assert len(chosen) == 70
    for case in chosen:
        ids, tools = case.fixture.output_token_ids, case.fixture.tools
        prompt = tokenizer.encode_markup(case.fixture.generation_prompt)
        real = parse_turn(ids, case.format, tokenizer, tools, finish=case.finish, prompt=prompt)
        stand_in = parse_turn(
            case.ids, case.format, case.tokenizer, tools, finish=case.finish, prompt=case.prompt
        )
        assert tokenizer.decode(ids) == case.fixture.raw_output
        assert without_spans(real) == without_spans(stand_in)
        for call in real.calls:
            start, end = call.token_span
            assert call.raw in tokenizer.decode(ids[start:end])
            assert call.raw not in tokenizer.decode(ids[start + 1 : end])
            assert call.raw not in tokenizer.decode(ids[start : end - 1])
