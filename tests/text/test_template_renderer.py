"""The renderer of chat templates: tokens in, tokens out, whatever the policy samples."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Message, ToolCall
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.text.chat_template import TemplateRefusal
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.renderer import Renderer
from headrace.pipeline.text.template_config import TemplateConfig
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from tests.text.templates import (
    ASKING,
    CHATML,
    GEMMA,
    KEEPING,
    LLAMA,
    OPENED,
    OPENING,
    REWRITING,
    SAFE,
    SPECIALS,
    STRIPPING,
    TOOLS_LAST,
)
from tests.text.vocabularies import TEXTS, definition, entry

ADDED = tuple(entry(text) for text in SPECIALS)
TOKENIZER = HubTokenizer(definition("byte-level", ADDED))
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


def make(template: str, **config: Any) -> TemplateRenderer:
    source = TemplateSource(template, {"bos_token": "<s>", "eos_token": "</s>"}, (99,))
    return TemplateRenderer(TOKENIZER, source, [ADD], TemplateConfig(**config))


ALL = {**SAFE, **REWRITING}
RENDERERS: dict[str, Renderer] = {name: make(template) for name, template in ALL.items()}
SPLITTING = {name: make(template, history="split") for name, template in ALL.items()}

# Content may start or end with parts of specials; templates that trim take its spaces off.
WORDS = st.sampled_from([*SPECIALS, *TEXTS, "<|im_", "end|>", "|>", "<", " ", "\n", "é🙂", "42"])
CONTENTS = st.lists(WORDS | st.text(max_size=4), max_size=6).map("".join)
CLEAN = st.sampled_from(["Hi", "12 + 30", "Fine, thanks.", "x\ny", "naïve 🙂", "[1]"])
NAMES = st.sampled_from([*ALL])


def answer(content: str, role: str = "user") -> Message:
    return Message("tool", content, name="add") if role == "tool" else Message("user", content)


ROLES = st.sampled_from(["user", "tool"])


@given(st.sampled_from([*SAFE, "stripping", "harmony"]), CLEAN, CLEAN, CLEAN)
def test_law_1_for_a_turn_in_canonical_spelling(
    name: str, first: str, said: str, then: str
) -> None:
    renderer = RENDERERS[name]
    question, turn, reply = Message("user", first), Message("assistant", said), answer(then)
    grown = renderer.prompt([question]) + renderer.turn(turn) + renderer.delta([reply])
    whole = renderer.prompt([question, turn, reply])
    if name == "harmony":  # its last turn ends with <|return|>, which history has as <|end|>
        stop, end = TOKENIZER.special_id("<|return|>"), TOKENIZER.special_id("<|end|>")
        grown = [end if index == stop else index for index in grown]
    assert grown == whole
    assert renderer.text(whole).count(then) >= 1


@given(st.sampled_from(["keeping", "llama", "stripping", "mistral"]), CLEAN, CLEAN)
def test_law_1_for_a_call_in_canonical_spelling(name: str, first: str, result: str) -> None:
    renderer = RENDERERS[name]
    question, reply = Message("user", first), answer(result, "tool")
    turn = Message("assistant", "", (ToolCall("add", {"a": 12}),))
    grown = renderer.prompt([question]) + renderer.turn(turn) + renderer.delta([reply])
    assert grown == renderer.prompt([question, turn, reply])
    (call,) = renderer.parse(renderer.turn(turn)).tool_calls
    assert (call.name, call.arguments, call.status) == ("add", {"a": 12}, "ok")


@given(NAMES, CONTENTS, ROLES)
def test_injection_content_never_gives_a_special_id(name: str, content: str, role: str) -> None:
    renderer = RENDERERS[name]
    specials = set(TOKENIZER.specials.values())
    for neutral, ids in (
        (renderer.delta([answer("x", role)]), renderer.delta([answer(content, role)])),
        (renderer.prompt([answer("x")]), renderer.prompt([answer(content)])),
    ):
        assert [i for i in ids if i in specials] == [i for i in neutral if i in specials]


@given(NAMES, CONTENTS, CONTENTS)
def test_injection_reasoning_calls_and_names_give_no_special_id(
    name: str, content: str, other: str
) -> None:
    specials = set(TOKENIZER.specials.values())

    def found(text: str, value: str) -> list[int]:
        turn = Message("assistant", text, (ToolCall("add", {"a": value}, id=text),), value)
        reply = Message("tool", text, name=f"add{value}")
        ids = RENDERERS[name].prompt([Message("user", "q"), turn, reply])
        return [index for index in ids if index in specials]

    try:
        expected = found("x", "y")
    except TemplateRefusal:
        return
    assert found(f"x{content}x", f"y{other}y") == expected


@given(NAMES, CONTENTS, ROLES)
def test_content_is_in_the_text(name: str, content: str, role: str) -> None:
    text = RENDERERS[name].text(RENDERERS[name].delta([answer(content, role)]))
    plain = content.strip() if name in ("gemma", "llama") else content
    if name == "harmony" and role == "tool":
        return  # written as JSON
    assert plain in text


@given(NAMES, st.lists(st.integers(0, TOKENIZER.vocab_size + 3), max_size=30), CONTENTS)
def test_delta_does_not_depend_on_what_was_sampled(
    name: str, sampled: list[int], content: str
) -> None:
    renderer = RENDERERS[name]
    before = renderer.delta([answer(content)])
    message = renderer.parse(sampled)
    assert message.role == "assistant"
    assert isinstance(renderer.text(sampled), str)
    assert renderer.delta([answer(content)]) == before


@given(st.sampled_from([*SAFE, "stripping"]), CLEAN)
def test_parse_takes_a_turn_apart(name: str, said: str) -> None:
    renderer = RENDERERS[name]
    ids = renderer.turn(Message("assistant", said))
    assert ids[-1] in renderer.stop_ids
    assert renderer.parse(ids).content.strip() == said


def test_reasoning_is_written_and_read() -> None:
    turn = Message("assistant", "Done.", reasoning="First this.\nThen that.")
    assert RENDERERS["keeping"].parse(RENDERERS["keeping"].turn(turn)) == turn
    with pytest.raises(ConfigError, match="leaves out the reasoning 'First this"):
        RENDERERS["chatml"].turn(turn)


def test_a_turn_doesnt_depend_on_what_is_written_before_the_question() -> None:
    renderer = make(TOOLS_LAST)
    assert renderer.text(renderer.turn(Message("assistant", "Done."))) == "Done.</s>"


def test_a_wrong_call_in_the_history_is_ordinary_text() -> None:
    raw = '<tool_call>{"name": "add"</tool_call>'
    wrong = Message("assistant", "So: ", (ToolCall("add", status="invalid_json", raw=raw),))
    renderer = RENDERERS["keeping"]
    ids = renderer.prompt([Message("user", "q"), wrong, Message("user", "again")])
    assert f"So: {raw}<|im_end|>" in renderer.text(ids)
    tools = TOKENIZER.specials["<tool_call>"], TOKENIZER.specials["</tool_call>"]
    assert not set(tools) & set(ids)


def test_stop_ids() -> None:
    names = {TOKENIZER.decode([i]) for i in RENDERERS["opening"].stop_ids}
    assert "<|user|>" in names
    assert "<|im_end|>" in names
    assert 99 in RENDERERS["opening"].stop_ids
    harmony = {TOKENIZER.decode([i]) for i in RENDERERS["harmony"].stop_ids}
    assert {"<|return|>", "<|call|>"} <= harmony
    assert "<|end|>" not in harmony


def test_a_template_without_tools_gets_them_in_the_hermes_format() -> None:
    renderer = make(CHATML)
    text = renderer.text(renderer.prompt([Message("system", "Be brief."), Message("user", "q")]))
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '"name": "add"' in text
    delta = renderer.text(renderer.delta([answer("3", "tool"), answer("4", "tool")]))
    responses = "<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"
    assert delta == f"\n<|im_start|>user\n{responses}<|im_end|>\n<|im_start|>assistant\n"
    ids = renderer.turn(Message("assistant", "", (ToolCall("add", {"a": 1}),)))
    assert renderer.parse(ids).tool_calls[0].arguments == {"a": 1}


def test_a_template_without_system_messages_gets_them_before_the_user() -> None:
    renderer = make(GEMMA)
    text = renderer.text(renderer.prompt([Message("system", "Be brief."), Message("user", "q")]))
    assert text.startswith("<s><start_of_turn>user\nBe brief.\n\n# Tools")
    assert text.endswith("\n\nq<end_of_turn>\n<start_of_turn>model\n")


def test_an_answer_may_name_its_call() -> None:
    renderer = RENDERERS["mistral"]
    reply = Message("tool", "3", name="add", tool_call_id="abcdefgh1")
    assert '"call_id": "abcdefgh1"}' in renderer.text(renderer.delta([reply]))
    assert '"call_id": "000000000"}' in renderer.text(renderer.delta([answer("3", "tool")]))


def test_several_answers_where_a_turn_has_one_call() -> None:
    text = RENDERERS["llama"].text(RENDERERS["llama"].delta([answer("1", "tool")] * 2))
    assert text.count("ipython") == 2


def test_a_format_without_signs_is_found_by_what_it_reads() -> None:
    """The template writes calls as Llama does, and says nothing of them that only Llama's does."""
    bare = KEEPING.replace("<tool_call>\n", "").replace("\n</tool_call>", "")
    renderer = make(bare.replace('"arguments": ', '"parameters": '))
    ids = renderer.turn(Message("assistant", "", (ToolCall("add", {"a": 12}),)))
    (call,) = renderer.parse(ids).tool_calls
    assert (call.name, call.arguments, call.status) == ("add", {"a": 12}, "ok")


def test_calls_that_no_format_reads_are_refused_where_there_are_tools() -> None:
    strange = KEEPING.replace("<tool_call>", "!call ").replace("</tool_call>", "!end")
    tokenizer = HubTokenizer(
        definition("byte-level", (entry("<|im_start|>"), entry("<|im_end|>")))
    )
    source = TemplateSource(strange, {})
    with pytest.raises(ConfigError, match=r"writes a call as '!call .*which no tool format here"):
        TemplateRenderer(tokenizer, source, [ADD])
    TemplateRenderer(tokenizer, source, [ADD], TemplateConfig(tool_format="hermes"))
    TemplateRenderer(tokenizer, source)


def test_the_date_is_the_one_given() -> None:
    assert "02 Mar 2027" in make(LLAMA, date="2027-03-02").text(
        make(LLAMA, date="2027-03-02").prompt([Message("user", "q")])
    )


def test_wrong_messages() -> None:
    renderer = RENDERERS["harmony"]
    with pytest.raises(ValueError, match="no assistant message"):
        renderer.delta([Message("assistant", "a")])
    with pytest.raises(ValueError, match="give the messages of tools a name"):
        renderer.delta([Message("tool", "a")])
    with pytest.raises(ValueError, match="got role 'user'"):
        renderer.turn(Message("user", "a"))
    with pytest.raises(ValueError, match="one of system, user, assistant, tool, got 'User'"):
        renderer.prompt([Message("User", "a")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="roles must alternate"):
        RENDERERS["gemma"].delta([Message("user", "a"), Message("user", "b")])


@given(NAMES, CLEAN, CLEAN, CLEAN)
@settings(max_examples=30)
def test_split_goes_on_where_nothing_is_rewritten(
    name: str, first: str, said: str, then: str
) -> None:
    for renderer in (RENDERERS[name], SPLITTING[name]):
        messages = [
            Message("user", first),
            Message("assistant", said),
            Message("user", f"{then}!"),
        ]
        ids = renderer.prompt(messages[:1]) + renderer.turn(messages[1])
        found = renderer.rewritten(ids, messages)
        if name in ("harmony", "mistral") and renderer is SPLITTING[name]:
            assert found == renderer.prompt(messages)
        else:
            assert found is None


def test_split_starts_anew_where_reasoning_is_stripped() -> None:
    renderer = make(STRIPPING, history="split")
    turn = Message("assistant", "Done.", reasoning="Think.")
    messages = [Message("user", "q"), turn, Message("user", "more")]
    ids = renderer.prompt(messages[:1]) + renderer.turn(turn)
    rewritten = renderer.rewritten(ids, messages)
    assert rewritten == renderer.prompt(messages)
    assert "Think." not in renderer.text(rewritten)
    called = Message("assistant", "", (ToolCall("add", {"a": 1}),), "Think.")
    answered = [Message("user", "q"), called, answer("1", "tool")]
    ids = renderer.prompt(answered[:1]) + renderer.turn(called)
    assert renderer.rewritten(ids, answered) is None


def test_split_starts_anew_where_what_was_read_is_written_otherwise() -> None:
    """The template shows neither that reasoning was opened nor what was thought."""
    renderer = make(OPENED, history="split")
    first = Message("user", "q")
    turn = renderer.parse(TOKENIZER.encode_markup("So.</think>Done.<|im_end|>"))
    assert (turn.reasoning, turn.content) == ("So.", "Done.")
    for later in (answer("more"), answer("3", "tool")):
        messages = [first, turn, later]
        ids = renderer.prompt([first]) + TOKENIZER.encode_markup("So.</think>Done.<|im_end|>")
        assert renderer.rewritten(ids, messages) == renderer.prompt(messages)


@pytest.mark.parametrize("template", [CHATML, ASKING, TOOLS_LAST])
def test_split_gives_the_ids_of_the_whole_conversation(template: str) -> None:
    """Whatever is rewritten, the policy reads what the template writes: turn after turn."""
    renderer = make(template, history="split")
    messages = [Message("user", "q"), Message("assistant", "a", reasoning="Hm.")]
    ids = renderer.prompt(messages[:1]) + TOKENIZER.encode_markup("<think>Hm.</think>a")
    ids += [renderer.stop_ids[0]]
    for said in ("b", "c"):
        messages += [Message("user", "more")]
        found = renderer.rewritten(ids, messages)
        ids = ids + renderer.delta(messages[-1:]) if found is None else found
        assert ids == renderer.prompt(messages)
        turn = Message("assistant", said)
        ids += renderer.turn(turn)
        messages += [turn]


def test_split_minds_no_other_spelling_of_the_same_turn() -> None:
    renderer = make(KEEPING, history="split")
    turn = Message("assistant", "abc")
    canonical = renderer.turn(turn)
    split = [i for c in "abc" for i in TOKENIZER.encode(c)] + canonical[-1:]
    messages = [Message("user", "q"), turn, Message("user", "more")]
    assert renderer.rewritten(renderer.prompt(messages[:1]) + split, messages) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tool_format": "xyz"}, "chat.tool_format must be in"),
        ({"date": "tomorrow"}, "chat.date must be a date like 2026-01-01, got 'tomorrow'"),
    ],
)
def test_a_wrong_setting_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TemplateConfig(**config)


def test_thinking_is_a_variable_of_the_template() -> None:
    source = CHATML + "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
    prompts = [
        make(source, thinking=thinking).text(
            make(source, thinking=thinking).prompt([Message("user", "q")])
        )
        for thinking in ("default", "on", "off")
    ]
    endings = [prompt.rpartition("assistant\n")[2] for prompt in prompts]
    assert endings == ["", "True", "False"]


def test_openings_are_closings_where_turns_have_none() -> None:
    renderer = make(OPENING)
    turn = renderer.turn(Message("assistant", "hi"))
    assert renderer.text(turn) == "hi<|user|>"
    assert renderer.text(renderer.delta([Message("user", "q")])) == "\nq<|assistant|>\n"
