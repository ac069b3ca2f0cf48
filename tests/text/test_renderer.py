"""Renderer laws: the prefix, no influence of what was said, round trips, injection."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import BUILTIN, Message, ToolCall, calculator, guess_number
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.text.character_tokenizer import SPECIALS, CharacterTokenizer
from headrace.pipeline.text.renderer import CharacterRenderer, Renderer, TextConfig
from headrace.pipeline.text.toolcalls import parse_tool_call

CONFIG = TextConfig("abcdefg<>/()0123456789+ ", words=("add", "added", "de", "<end>x"))
TEXTS = st.text(CONFIG.characters, max_size=12) | st.sampled_from(["addaddedade", "added(1+2)"])
RENDERER: Renderer = CharacterRenderer(CONFIG)
ASSISTANT = TEXTS.map(lambda text: RENDERER.parse(RENDERER.turn(Message("assistant", text))))
OTHERS = st.lists(
    st.builds(Message, st.sampled_from(["user", "tool", "system"]), TEXTS), min_size=1, max_size=3
)
IDS = st.lists(st.integers(-2, RENDERER.vocab_size + 2), max_size=20)


@given(OTHERS, ASSISTANT, OTHERS)
def test_law_1_a_conversation_only_grows(
    first: list[Message], turn: Message, answer: list[Message]
) -> None:
    grown = RENDERER.prompt(first) + RENDERER.turn(turn) + RENDERER.delta(answer)
    assert grown == RENDERER.prompt([*first, turn, *answer])


@given(OTHERS, IDS, IDS)
def test_delta_does_not_depend_on_what_was_said(
    answer: list[Message], sampled: list[int], others: list[int]
) -> None:
    before = RENDERER.delta(answer)
    RENDERER.parse(sampled)
    RENDERER.prompt(answer)
    RENDERER.parse(others)
    assert RENDERER.delta(answer) == before


@given(TEXTS)
def test_turn_and_parse_are_inverse(text: str) -> None:
    ids = RENDERER.turn(Message("assistant", text))
    message = RENDERER.parse(ids)
    assert message.content == text
    assert RENDERER.turn(message) == ids
    assert ids[-1] in RENDERER.stop_ids


@given(IDS)
def test_parse_and_text_never_raise(ids: list[int]) -> None:
    assert RENDERER.parse(ids).role == "assistant"
    assert isinstance(RENDERER.text(ids), str)


@given(st.text(), st.lists(st.sampled_from(SPECIALS), min_size=1), st.sampled_from("ut"))
@settings(max_examples=50)
def test_injection_text_never_gives_a_special_id(text: str, names: list[str], role: str) -> None:
    message = Message("user" if role == "u" else "tool", text.join(names))
    renderer = CharacterRenderer(TextConfig())
    opening, *ids, closing = renderer.delta([message])
    unknown = SPECIALS.index("<unknown>")
    assert all(index >= len(SPECIALS) or index == unknown for index in ids)
    assert (opening, closing) == (renderer.delta([Message(message.role, "")])[0], 5)


def test_role_tokens_and_the_generation_prompt() -> None:
    messages = [Message("system", "a"), Message("user", "1+2"), Message("tool", "added")]
    for ids in (RENDERER.prompt(messages), RENDERER.delta(messages)):
        assert RENDERER.text(ids) == "<system>a<user>1+2<tool>added<assistant>"
        assert len(ids) == 1 + 1 + 1 + 3 + 1 + 1 + 1


def test_words_are_atomic_for_policy_and_tools_only() -> None:
    assert len(RENDERER.turn(Message("assistant", "addedadd"))) == 3
    assert len(RENDERER.delta([Message("user", "added")])) == 2 + 5


def test_a_special_token_inside_a_call_makes_it_malformed() -> None:
    ids = RENDERER.turn(Message("assistant", "add(12)"))
    assert RENDERER.parse(ids).tool_calls[0].status == "ok"
    message = RENDERER.parse([*ids[:2], SPECIALS.index("<user>"), *ids[2:]])
    (call,) = message.tool_calls
    assert (call.status, call.argument, call.raw) == ("malformed", None, "add(<user>12)")


def test_stop_characters_close_a_turn_by_themselves() -> None:
    renderer = CharacterRenderer(TextConfig("abc?", stop_characters="ab"))
    a, end = renderer.turn(Message("assistant", "a"))[0], SPECIALS.index("<end>")
    assert renderer.turn(Message("assistant", "a")) == [a]
    assert renderer.turn(Message("assistant", "c"))[-1] == end
    assert renderer.turn(Message("assistant", "")) == [end]
    assert set(renderer.stop_ids) == {end, a, *renderer.turn(Message("assistant", "b"))}
    assert renderer.parse([a]).content == "a"
    with pytest.raises(ConfigError, match="goes on after one of"):
        renderer.turn(Message("assistant", "ac"))


def test_an_unknown_character_stops_a_prompt_and_not_a_tool() -> None:
    for call in (RENDERER.prompt, lambda m: RENDERER.turn(Message("assistant", m[0].content))):
        with pytest.raises(ConfigError, match=r"'é' \(U\+00E9\).* add it to text.characters"):
            call([Message("user", "caé")])
    ids = RENDERER.delta([Message("tool", "é")])
    assert RENDERER.text(ids) == "<tool><unknown><assistant>"


def test_roles_are_checked() -> None:
    with pytest.raises(ValueError, match="no assistant message"):
        RENDERER.delta([Message("assistant", "a")])
    for render in (RENDERER.delta, RENDERER.prompt):
        with pytest.raises(ValueError, match=r"one of system, user, assistant, tool, got 'User'"):
            render([Message("User", "a")])
    with pytest.raises(ValueError, match="got role 'user'"):
        RENDERER.turn(Message("user", "a"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"characters": ""}, "at least one character"),
        ({"characters": "aba"}, r"must not repeat anything, got \['a'\]"),
        ({"characters": "ab", "words": ("ab", "ab")}, "text.words must not repeat"),
        ({"characters": "ab", "words": ("a",)}, "two or more characters each, got 'a'"),
        ({"characters": "ab", "words": ("<end>",)}, "special token, got '<end>'"),
        ({"characters": "ab", "stop_characters": "bc"}, r"got \['c'\]"),
    ],
)
def test_a_wrong_alphabet_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextConfig(**arguments)  # type: ignore[arg-type]


@given(st.text("abx(", max_size=30))
def test_tokenizer_round_trip_with_the_longest_words_first(text: str) -> None:
    tokenizer = CharacterTokenizer("abx(", ("ab", "abx", "xx"))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.encode_lossy(text) == ids
    assert len(tokenizer.encode(text, words=False)) == len(text)
    if "abx" in text.replace("xx", ""):
        assert len(ids) < len(text)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("", None),
        ("12", None),
        (" f(x)", None),
        ("(x)", None),
        ("2f(x)", None),
        ("f (x)", None),
        ("f(x)", ToolCall("f", raw="f(x)", argument="x")),
        ("f()", ToolCall("f", raw="f()", argument="")),
        ("f_1((1)+\n2)", ToolCall("f_1", raw="f_1((1)+\n2)", argument="(1)+\n2")),
        ("f(1)+(2)", ToolCall("f", raw="f(1)+(2)", argument="1)+(2")),
        ("f(x", ToolCall("f", status="malformed", raw="f(x")),
        ("f(x) ", ToolCall("f", status="malformed", raw="f(x) ")),
        ("f(", ToolCall("f", status="malformed", raw="f(")),
    ],
)
def test_tool_calls(text: str, call: ToolCall | None) -> None:
    assert parse_tool_call(text) == call


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("calculator", TextConfig(calculator.CHARACTERS, words=calculator.WORDS)),
        (
            "guess_number",
            TextConfig(guess_number.CHARACTERS, stop_characters=guess_number.LETTERS),
        ),
    ],
)
def test_demonstrations_of_the_built_in_tasks_survive_their_alphabet(
    name: str, config: TextConfig
) -> None:
    spec, renderer, rng = BUILTIN[name], CharacterRenderer(config), random.Random(0)
    assert spec.demonstrate is not None
    for task in spec.tasks("train", 50, 0):
        messages = spec.demonstrate(task, rng)
        renderer.prompt(messages)
        for message in messages:
            if message.role == "assistant":
                assert renderer.parse(renderer.turn(message)) == message
