"""What is proved of a chat template, what is found out about it, and what is refused."""

from collections.abc import Sequence

import pytest

from headrace.envs import Message
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.text.chat_format import ChatFormat
from headrace.pipeline.text.chat_template import ChatTemplate
from headrace.pipeline.text.conversation import ToolSchema
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.probe import prove
from tests.text.templates import (
    ASKING,
    CHATML,
    CHATML_TOOLS,
    GEMMA,
    HARMONY,
    KEEPING,
    LEAKING,
    LLAMA,
    OPENED,
    OPENING,
    PARTS,
    PHI,
    PLAIN_TEXT,
    SPECIALS,
    STRIPPING,
    TOOLS_LAST,
)
from tests.text.vocabularies import definition, entry

TOKENIZER = HubTokenizer(definition("byte-level", tuple(entry(text) for text in SPECIALS)))

ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}


def probe(template: str, tools: Sequence[ToolSchema] = ()) -> ChatFormat:
    texts = {"bos_token": "<s>", "eos_token": "</s>"}
    return prove(ChatTemplate(template, texts), TOKENIZER, tools)


@pytest.mark.parametrize(
    ("template", "token", "tools", "system", "content"),
    [
        (CHATML, "<|im_end|>", False, True, "text"),
        (KEEPING, "<|im_end|>", True, True, "text"),
        (GEMMA, "<end_of_turn>", False, False, "text"),
        (LLAMA, "<|eot_id|>", True, True, "text"),
        (PHI, "<|end|>", False, True, "text"),
        (OPENING, "<|user|>", False, True, "text"),
        (PARTS, "<|im_end|>", False, True, "parts"),
        (HARMONY, "<|return|>", True, True, "text"),
    ],
)
def test_what_a_template_can_do(
    template: str, token: str, tools: bool, system: bool, content: str
) -> None:
    chat = probe(template)
    abilities = chat.writer.abilities
    assert chat.said.last_token == token
    assert (abilities.tools, abilities.system, abilities.content) == (tools, system, content)
    assert chat.names_tools == (template is HARMONY)


def test_arguments_as_text() -> None:
    template = KEEPING.replace("(call.function.arguments | tojson) +", "call.function.arguments +")
    assert probe(template).writer.abilities.arguments == "json"


@pytest.mark.parametrize("template", [CHATML, KEEPING, GEMMA, LLAMA, PHI, OPENING, PARTS])
def test_safe_templates_have_no_notes(template: str) -> None:
    assert probe(template).notes == ()


def test_notes_say_what_a_template_rewrites() -> None:
    assert probe(STRIPPING).notes == (
        "it rewrites a turn with reasoning when the user speaks again",
    )
    assert "it rewrites a turn when the user speaks again" in probe(HARMONY).notes


@pytest.mark.parametrize("template", [OPENED, ASKING, TOOLS_LAST])
def test_what_was_read_and_is_written_otherwise_later_is_noted(template: str) -> None:
    note = "it writes what the policy has read otherwise once the policy has spoken"
    assert note in probe(template, [ADD]).notes


def test_a_template_that_counts_its_answers_is_noted() -> None:
    counted = KEEPING.replace(
        "'\n<tool_response>\n'",
        "'\n' + (messages[:loop.index] | selectattr('role', 'equalto', 'tool') | list | length "
        "| string) + '<tool_response>\n'",
    )
    chat = probe(counted)
    assert chat.notes == ("it writes later answers otherwise than the first one",)
    assert "\n1<tool_response>" in chat.after([Message("tool", "x")])


def test_text_beside_a_call_that_moves_is_noted() -> None:
    moved = KEEPING.replace("{{- message.content }}\n", "", 1).replace(
        "{{- '\n<tool_response>",
        "{{- messages[loop.index0 - 1].content if loop.previtem.role == 'assistant' else '' }}"
        "{{- '\n<tool_response>",
    )
    # It must still write what is said without a call.
    moved = moved.replace(
        "{%- for call in", "{{- message.content if not message.tool_calls }}{%- for call in", 1
    )
    assert probe(moved).notes == ("it moves what is said beside a call behind the call's answer",)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LEAKING, r"depends on what the policy said in it: '.*zq.*' against '.*\(long\)"),
        (PLAIN_TEXT, "closes the policy's turn by '.nuser: .*', which is no special token"),
        ("{{ messages[0].content }}", "leaves out what the policy said"),
        ("{{ raise_exception('no') }}", "no conversation can be written: .* refuses these"),
        ("{{ messages[7].content.x }}", "no conversation can be written: .* fails: "),
        ("{% if %}", "the chat template is no Jinja: .*, in line 1"),
        (
            CHATML.replace("message.content", "message.content | truncate(14, True, '')"),
            "depends on what|leaves out what|closes the policy's turn",
        ),
        (
            CHATML.replace(
                "'<|im_end|>'",
                "('<|im_end|>' if message.content | length < 20 else '<|end|>')",
            ),
            "closes the policy's turn now by '<|end|>.*', now by '<|im_end|>'".replace("|", r"\|"),
        ),
    ],
)
def test_an_unsafe_template_is_refused(template: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        probe(template)


def test_too_few_histories_are_no_proof() -> None:
    picky = CHATML_TOOLS.replace(
        "THINK",
        "{{- raise_exception('') if message.reasoning_content or '.' in message.content }}",
    )
    with pytest.raises(ConfigError, match="can write 1 of 4 made-up turns, too few"):
        probe(picky)
