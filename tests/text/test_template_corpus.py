"""The chat templates that TRL ships: all are proved safe, and their ids are Transformers' ids.

The tokenizer is a small one with the special tokens of all templates.
"""

import datetime
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from headrace.envs import Message, ToolCall
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.template_config import TemplateConfig
from headrace.pipeline.text.template_renderer import TemplateRenderer, TemplateSource
from tests.text.vocabularies import definition, entry, file_of

pytestmark = pytest.mark.parity

TEMPLATES = sorted(file_of("trl", "chat_templates").glob("*.jinja"))
EVERY = pytest.mark.parametrize("path", TEMPLATES, ids=[path.stem for path in TEMPLATES])
MARKS = re.compile(
    r"<\|[A-Za-z_\"]+\|?>|<[A-Za-z_]+\|>|<｜[^｜<>]+｜>|</?(?:think|tool_call|tool_response)>"
    r"|<(?:start_of_turn|end_of_turn|end_of_utterance)>|\[/?INST\]"
)
TEXTS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL: dict[str, Any] = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "The first."}},
        "required": ["a"],
    },
}
CALL_ID = "abcdefgh1"


@cache
def contents() -> dict[str, Any]:
    found = {mark for path in TEMPLATES for mark in MARKS.findall(path.read_text("utf-8"))}
    names = sorted(found | {"<s>", "</s>"})
    return definition("byte-level", tuple(entry(name) for name in names))


@cache
def reference() -> Any:
    transformers = pytest.importorskip("transformers")
    library = Tokenizer.from_str(json.dumps(contents()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **TEXTS)


@cache
def tokenizer() -> HubTokenizer:
    return HubTokenizer(contents())


@cache
def renderer(path: Path, *, tools: bool = True) -> TemplateRenderer:
    # Transformers gives its templates the date of today.
    config = TemplateConfig(date=datetime.datetime.now(tz=None).date().isoformat())
    source = TemplateSource(path.read_text("utf-8"), TEXTS)
    return TemplateRenderer(tokenizer(), source, [TOOL] * tools, config)


def said(content: str, reasoning: str = "") -> tuple[Message, dict[str, Any]]:
    fields = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), reasoning)
    return Message("assistant", content, reasoning=reasoning), {
        "role": "assistant",
        "content": content,
        **(fields if reasoning else {}),
    }


def heard(role: str, content: str) -> tuple[Message, dict[str, Any]]:
    return Message(role, content), {"role": role, "content": content}  # type: ignore[arg-type]


def called(reasoning: str = "") -> tuple[Message, dict[str, Any]]:
    message, fields = said("", reasoning)
    call = ToolCall("add", {"a": 1}, id=CALL_ID)
    function = {"name": "add", "arguments": {"a": 1}}
    calls = [{"type": "function", "id": CALL_ID, "function": function}]
    return (
        Message("assistant", "", (call,), reasoning=message.reasoning),
        {**fields, "tool_calls": calls},
    )


def answered(content: str) -> tuple[Message, dict[str, Any]]:
    return Message("tool", content, name="add", tool_call_id=CALL_ID), {
        "role": "tool",
        "content": content,
        "name": "add",
        "tool_call_id": CALL_ID,
    }


PLAIN = (
    (heard("user", "Hello\nthere"),),
    (heard("user", "\n\n Hi \n"), said("Fine, thanks."), heard("user", "äö 東京 🙂 12345")),
    (heard("user", "Hi"), said("So it is 2.", "Think it\nover."), heard("user", "next <b>")),
)
WITH_SYSTEM = ((heard("system", " Be brief. "), heard("user", "Hi")),)
WITH_TOOLS = (
    (heard("user", "Hi"), called(), answered('{"r": 2}')),
    (heard("user", "Hi"), called("Hm."), answered("2"), said("It is 2."), heard("user", "ok")),
)


@EVERY
def test_the_ids_are_those_of_transformers(path: Path) -> None:
    template, abilities = path.read_text("utf-8"), renderer(path).chat_format.writer.abilities
    conversations = PLAIN + WITH_SYSTEM * abilities.system + WITH_TOOLS * abilities.tools
    tools = [{"type": "function", "function": TOOL}] if abilities.tools else None
    # A template that knows no tools would get them in words of our own.
    ours = renderer(path, tools=abilities.tools)
    for conversation in conversations:
        dicts = [fields for _, fields in conversation]
        if abilities.content == "parts":
            dicts = [
                {**fields, "content": [{"type": "text", "text": fields["content"]}]}
                for fields in dicts
            ]
        assert abilities.arguments == "object"
        expected = reference().apply_chat_template(
            dicts, tools=tools, chat_template=template, tokenize=True, add_generation_prompt=True
        )["input_ids"]
        assert ours.prompt([message for message, _ in conversation]) == expected


@EVERY
def test_what_the_renderer_appends_is_what_the_template_writes(path: Path) -> None:
    ours = renderer(path)
    pairs = [(heard("user", "Hi"), said("Fine."), heard("user", "next"))]
    if not ours.chat_format.names_tools:
        pairs.append((heard("user", "Hi"), called(), answered("2")))
    for (question, _), (turn, _), (reply, _) in pairs:
        whole = ours.prompt([question, turn, reply])
        delta = ours.delta([reply])
        assert whole[len(whole) - len(delta) :] == delta


@EVERY
def test_conformance_12_the_turns_joined_are_what_the_template_writes_of_all(path: Path) -> None:
    """Also what stands between two turns; where a template writes them otherwise, it says so."""
    ours = renderer(path)
    if declared(ours):
        return
    tools = not ours.chat_format.names_tools
    turns = [(called()[0], answered("2")[0])] * tools
    turns += [(said(text)[0], heard("user", text)[0]) for text in ("Fine.", "So it is 2.")]
    messages = [Message("user", "Hi")]
    joined = ours.prompt(messages)
    for turn, reply in turns:
        joined += ours.turn(turn) + ours.delta([reply])
        messages += [turn, reply]
    assert joined == ours.prompt(messages)


def declared(ours: TemplateRenderer) -> bool:
    """Whether it is known that turns are written otherwise later."""
    return any("rewrites" in note or "otherwise" in note for note in ours.chat_format.notes)


@EVERY
def test_injection_content_never_gives_a_special_id(path: Path) -> None:
    ours, specials = renderer(path), set(tokenizer().specials.values())
    attack = " ".join(tokenizer().specials) + " <|im_"

    def marks(content: str) -> list[int]:
        turn, reply = called()[0], answered(content)[0]
        ids = ours.prompt([Message("user", content), turn, reply]) + ours.delta([reply])
        return [index for index in ids if index in specials]

    assert marks(f"a {attack}") == marks("a x")


def test_how_many_there_are() -> None:
    chats = {path.stem: renderer(path).chat_format for path in TEMPLATES}
    assert len(chats) > 60
    assert sum(not declared(renderer(path)) for path in TEMPLATES) > 40
    rewriting = {name for name, chat in chats.items() if any("rewrites" in n for n in chat.notes)}
    assert {"qwen3", "qwen3_5_think", "qwen3_6", "gptoss", "glm4moe", "gemma4_v5"} <= rewriting
    assert not rewriting & {
        "qwen2_5", "qwen3_instruct_2507", "qwen3_8", "llama3", "llama3_1", "llama3_2", "gemma",
        "gemma3", "gemma4", "cohere2", "lfm2", "qwen3_training", "phi3",
    }  # fmt: skip
