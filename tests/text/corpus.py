"""The fixtures of the package canitoolcall, as token ids of a stand-in tokenizer.

The real vocabularies aren't at hand, but the fixtures' ids tell which markers are one token. The
stand-in has those tokens, and one for each byte; a fixture's markers stand where its own ids
have them, so that a marker that a model spelled with ordinary tokens stays ordinary text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from canitoolcall.fixtures import Family, Fixture, load_families, load_fixtures
from canitoolcall.results import ParsedToolCall, ParseResult

from headrace.pipeline.text.toolcalls import FORMATS, Format, ParsedTurn

_CHATML = {"<tool_call>": 151657, "</tool_call>": 151658, "<think>": 151667, "</think>": 151668}
_CHATML_248K = {
    "<tool_call>": 248058,
    "</tool_call>": 248059,
    "<think>": 248068,
    "</think>": 248069,
}
_DEEPSEEK_CALLS = {
    "<｜tool▁calls▁begin｜>": 128806,
    "<｜tool▁calls▁end｜>": 128807,
    "<｜tool▁call▁begin｜>": 128808,
    "<｜tool▁call▁end｜>": 128809,
    "<｜tool▁sep｜>": 128814,
}
_GLM = {
    "<think>": 151350,
    "</think>": 151351,
    "<tool_call>": 151352,
    "</tool_call>": 151353,
    "<arg_key>": 151356,
    "</arg_key>": 151357,
    "<arg_value>": 151358,
    "</arg_value>": 151359,
}
_KIMI_K2 = {
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<think>": 163606,
    "</think>": 163607,
}
_TEKKEN = {"[TOOL_CALLS]": 9, "[ARGS]": 32, "[CALL_ID]": 33, "[THINK]": 34, "[/THINK]": 35}

# By the beginning of the tokenizer's repository; the first that fits.
SPECIALS: tuple[tuple[str, Mapping[str, int]], ...] = (
    ("Qwen/Qwen3.", _CHATML_248K),
    ("Qwen/", _CHATML),
    ("deepseek-ai/DeepSeek-V3.2", {"｜DSML｜": 128793, "<think>": 128798, "</think>": 128799}),
    ("deepseek-ai/DeepSeek-V4", {"｜DSML｜": 128825, "<think>": 128821, "</think>": 128822}),
    ("deepseek-ai/", {**_DEEPSEEK_CALLS, "<think>": 128798, "</think>": 128799}),
    (
        "google/gemma-4",
        {
            "<|tool_call>": 48,
            "<tool_call|>": 49,
            '<|"|>': 52,
            "<|channel>": 100,
            "<channel|>": 101,
        },
    ),
    ("zai-org/GLM-5", {text: index + 3491 for text, index in _GLM.items()}),
    ("zai-org/", _GLM),
    (
        "openai/gpt-oss",
        {
            "<|constrain|>": 200003,
            "<|channel|>": 200005,
            "<|start|>": 200006,
            "<|end|>": 200007,
            "<|message|>": 200008,
            "<|call|>": 200012,
        },
    ),
    ("moonshotai/Kimi-K3", {"<|open|>": 163587, "<|close|>": 163588, "<|sep|>": 163589}),
    ("moonshotai/", _KIMI_K2),
    (
        "unsloth/Llama-3",
        {"<|python_tag|>": 128010, "<|start_header_id|>": 128006, "<|end_header_id|>": 128007},
    ),
    ("unsloth/Llama-4", {"<|python_start|>": 200016, "<|python_end|>": 200017}),
    ("mistralai/Mistral-7B", {"[TOOL_CALLS]": 5}),
    ("mistralai/Magistral-Small-2506", {"[TOOL_CALLS]": 9, "[ARGS]": 32, "[CALL_ID]": 33}),
    ("mistralai/", _TEKKEN),
)

# By family, and by tag or the beginning of the model's name where a family has several.
FORMAT_NAMES: tuple[tuple[str, str, str], ...] = (
    ("qwen3-hermes", "", "hermes"),
    ("qwen3-xml", "", "qwen3_coder"),
    ("llama", "x-llama-json", "llama_json"),
    ("llama", "x-llama-pythonic", "llama_pythonic"),
    ("gemma4", "", "gemma4"),
    ("deepseek", "x-deepseek-v3", "deepseek_v3"),
    ("deepseek", "x-deepseek-v31", "deepseek_v31"),
    ("deepseek", "x-deepseek-v32", "deepseek_v32"),
    ("deepseek", "x-deepseek-v41", "deepseek_v41"),
    ("deepseek", "x-deepseek-v4", "deepseek_v4"),
    ("mistral", "mistralai/Mistral-7B-Instruct-v0.3", "mistral_v3"),
    ("mistral", "", "mistral_v11"),
    ("glm", "", "glm"),
    ("kimi", "x-kimi-k3", "kimi_k3"),
    ("kimi", "", "kimi_k2"),
    ("gpt-oss", "", "harmony"),
)


class StandIn:
    """A tokenizer of given special tokens, in order, after one token for each byte."""

    def __init__(self, specials: Sequence[str]) -> None:
        self.specials = {text: 256 + place for place, text in enumerate(specials)}
        self.vocab_size = 256 + len(specials)
        longest_first = sorted(map(re.escape, specials), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(longest_first)})").split

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes of a token; IndexError for an unknown id, as a list would."""
        if 0 <= index < 256:
            return bytes([index])
        return [*self.specials][index - 256].encode()

    def plain(self, text: str) -> list[int]:
        """Return the ids of a text as content: bytes only."""
        return list(text.encode(errors="replace"))

    def markup(self, text: str) -> list[int]:
        """Return the ids of a text in which special tokens stand by name."""
        ids: list[int] = []
        for piece in self._split(text):
            found = self.specials.get(piece)
            ids += self.plain(piece) if found is None else [found]
        return ids


# One vocabulary for all formats, in which each marker that is a token somewhere is one.
EVERYTHING = StandIn(
    sorted(
        {text for _, table in SPECIALS for text in table}
        | {stop for chosen in FORMATS.values() for stop in chosen.stops}
        | {"<|tool_call_start|>", "<|tool_call_end|>"}
    )
)


@dataclass(frozen=True)
class Case:
    """One fixture, ready to be parsed."""

    fixture: Fixture
    family: Family
    format_name: str
    tokenizer: StandIn
    ids: tuple[int, ...]
    prompt: tuple[int, ...]

    @property
    def format(self) -> Format:
        """The fixture's format."""
        return FORMATS[self.format_name]

    @property
    def finish(self) -> str:
        """How the turn ended."""
        return "length" if self.fixture.truncated else "stop"


def cases() -> list[Case]:
    """Return all fixtures."""
    families = load_families()
    return [_case(fixture, families[fixture.family]) for fixture in load_fixtures()]


def as_result(turn: ParsedTurn) -> ParseResult:
    """Return a turn as the package's checks want it: with the calls that would be run."""
    calls = [call for call in turn.calls if call.status == "ok"]
    return ParseResult(
        turn.content or None,
        turn.reasoning or None,
        tuple(ParsedToolCall(call.name, json.dumps(dict(call.arguments))) for call in calls),
    )


def _case(fixture: Fixture, family: Family) -> Case:
    pin = fixture.tokenizer
    assert pin is not None
    table = next(table for start, table in SPECIALS if pin.repo.startswith(start))
    tokenizer = StandIn(list(table))
    prompt = fixture.generation_prompt
    if prompt is None:
        model = next(m for m in family.reference_models if m.repo == fixture.reference_model)
        prompt = model.default_generation_prompt or ""
    ids = [
        index
        for piece, special in align(fixture, table)
        for index in ([tokenizer.specials[piece]] if special else tokenizer.plain(piece))
    ]
    return Case(
        fixture,
        family,
        _format_name(fixture),
        tokenizer,
        tuple(ids),
        tuple(tokenizer.markup(prompt)),
    )


def align(fixture: Fixture, table: Mapping[str, int]) -> Iterator[tuple[str, bool]]:
    """Yield the fixture's text in pieces: special tokens, and the text between them."""
    names = {index: text for text, index in table.items()}
    rest, at_least = fixture.raw_output, 0
    for index in fixture.output_token_ids or ():
        if index not in names:
            at_least = 1  # some text comes before the next special token
            continue
        start = rest.index(names[index], at_least)
        if start:
            yield rest[:start], False
        yield names[index], True
        rest, at_least = rest[start + len(names[index]) :], 0
    if rest:
        yield rest, False


def _format_name(fixture: Fixture) -> str:
    return next(
        name
        for family, sign, name in FORMAT_NAMES
        if family == fixture.family
        and (not sign or sign in fixture.tags or fixture.reference_model.startswith(sign))
    )
