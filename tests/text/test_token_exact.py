"""Laws 1 and 2 with the tokenizers of real models: what the learner gets is what was sampled."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Message, ToolCall
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.template_config import TemplateConfig
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from tests.rollout.talks import assert_exact, run
from tests.text.templates import KEEPING
from tests.text.vocabularies import TEXTS, qwen, smollm, smollm_fields

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


@cache
def qwen_chat() -> TemplateRenderer:
    return TemplateRenderer(qwen(20_000), TemplateSource(KEEPING, {}), [ADD])


@cache
def qwen_split() -> TemplateRenderer:
    source = TemplateSource(KEEPING, {})
    return TemplateRenderer(qwen(20_000), source, [ADD], TemplateConfig(history="split"))


@cache
def smollm_chat() -> TemplateRenderer:
    template = smollm_fields()["tokenizer.chat_template"]
    return TemplateRenderer(smollm(), TemplateSource(template, {}, (2,)), [ADD])


MAKERS: dict[str, Callable[[], TemplateRenderer]] = {
    "qwen": qwen_chat,
    "qwen, split": qwen_split,
    "smollm": smollm_chat,
}
EVERY = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())

# Ids of all kinds; joined they are often no UTF-8 and seldom canonical.
IDS = st.lists(st.integers(0, 19_999), max_size=40)
MARKS = ("<|im_end|>", "<|im_start|>", "<tool_call>", "</think>", "<|endoftext|>", "<|im_", "d|>")
LINES = st.builds(
    Message,
    st.sampled_from(["user", "tool"]),
    st.lists(st.sampled_from([*MARKS, *TEXTS, " ", "\n"]) | st.text(max_size=5), max_size=5).map(
        "".join
    ),
    name=st.just("add"),
)


def split_at_random(tokenizer: HubTokenizer, text: str, places: list[int]) -> list[int]:
    """Encode a text in pieces: the same bytes in another spelling."""
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    return [index for piece in pieces for index in tokenizer.encode(piece)]


@EVERY
@given(
    turns=st.lists(IDS, min_size=1, max_size=3),
    texts=st.lists(st.sampled_from(TEXTS), max_size=2),
    places=st.lists(st.integers(0, 200), max_size=8),
    lines=st.lists(LINES, max_size=4),
)
@settings(max_examples=15)
def test_law_1_and_2_through_an_episode(
    make: Callable[[], TemplateRenderer],
    turns: list[list[int]],
    texts: list[str],
    places: list[int],
    lines: list[Message],
) -> None:
    renderer = make()
    tokenizer = renderer.tokenizer
    assert isinstance(tokenizer, HubTokenizer)
    said = turns + [split_at_random(tokenizer, text, places) for text in texts]
    stop = renderer.stop_ids[0]
    outcome, script = run(renderer, [[*turn, stop] for turn in said], lines)
    assert_exact(outcome, script)
    if renderer is not qwen_split():
        assert outcome.earlier == ()


@EVERY
@given(lines=st.lists(LINES, min_size=1, max_size=3), sampled=IDS)
@settings(max_examples=15)
def test_delta_has_no_special_id_of_content_and_does_not_depend_on_the_turn(
    make: Callable[[], TemplateRenderer], lines: list[Message], sampled: list[int]
) -> None:
    renderer = make()
    ids = renderer.delta(lines)
    renderer.parse(sampled)
    assert renderer.delta(lines) == ids
    specials = set(renderer.tokenizer.specials.values())
    neutral = renderer.delta([Message(line.role, "x", name="add") for line in lines])
    assert [i for i in ids if i in specials] == [i for i in neutral if i in specials]


@EVERY
@given(st.lists(st.sampled_from(["Hello.", "2 + 3 = 5", "naïve\nx"]), min_size=1, max_size=3))
@settings(max_examples=10)
def test_canonical_turns_give_the_template_s_own_text(
    make: Callable[[], TemplateRenderer], texts: list[str]
) -> None:
    renderer = make()
    messages = [Message("user", "question")]
    ids = renderer.prompt(messages)
    for text in texts:
        call = Message("assistant", text, (ToolCall("add", {"a": 1}),))
        reply = Message("tool", text, name="add")
        ids += renderer.turn(call) + renderer.delta([reply])
        messages += [call, reply]
    assert ids == renderer.prompt(messages)


def test_smollm_knows_no_tools_and_has_its_own_system_message() -> None:
    renderer = smollm_chat()
    assert not renderer.chat_format.writer.abilities.tools
    bare = TemplateRenderer(
        smollm(), TemplateSource(smollm_fields()["tokenizer.chat_template"], {})
    )
    text = bare.text(bare.prompt([Message("user", "What is the capital of France?")]))
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert bare.stop_ids == (2, 0)  # <|im_end|>, and <|endoftext|> of a model that forgets it
