"""Talking to a policy: ids only grow, tools are run, and what is shown is what was said."""

import itertools

import numpy as np
import trio

from headrace.envs import load_env
from headrace.envs.messages import Message
from headrace.pipeline.chat.conversation import ChatConfig, Conversation, Speaker
from headrace.pipeline.chat.terminal import converse
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from headrace.pipeline.types import Completion, FinishReason

RENDERER = CharacterRenderer(TextConfig())
TOOLS = load_env("calculator").tools


class Scripted:
    """Says one text after the other, and keeps what it was asked."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.requests = []

    async def __call__(self, request):
        await trio.lowlevel.checkpoint()
        self.requests.append(request)
        ids = RENDERER.turn(Message("assistant", self.texts.pop(0)))[: request.max_tokens]
        whole = ids[-1] in RENDERER.stop_ids
        return Completion(
            np.array(ids, np.int32),
            np.full(len(ids), -0.5, np.float32),
            np.zeros(len(ids), np.int32),
            FinishReason.STOP if whole else FinishReason.LENGTH,
        )


def talk(scripted: Scripted, *lines: str, config=None) -> list[str]:
    rest = [*lines, None]
    shown = []

    async def run():
        speaker = Speaker(RENDERER, scripted, TOOLS)
        read = lambda: rest.pop(0)  # noqa: E731
        await converse(speaker, config or ChatConfig(), read=read, write=shown.append)

    trio.run(run)
    return shown


def test_law_1_ids_only_grow_and_the_tool_answers():
    scripted = Scripted("calculator(1+2)", "3", "bye")
    assert talk(scripted, "1+2", "thanks") == [
        "calculator(1+2)\ncalls calculator(1+2)",
        "calculator answers: 3",
        "3",
        "bye",
    ]
    asked = [request.tokens.tolist() for request in scripted.requests]
    assert all(long[: len(short)] == short for short, long in itertools.pairwise(asked))
    assert RENDERER.text(asked[-1]).count("<user>") == 2


def test_a_new_conversation_forgets_and_draws_anew():
    scripted = Scripted("a", "b")
    assert talk(scripted, "x", "/new", "x") == ["a", "(a new conversation)", "b"]
    first, second = scripted.requests
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.key != second.key


def test_what_cannot_be_said_is_not_said_and_the_conversation_goes_on():
    scripted = Scripted("a")
    refused, said = talk(scripted, "東京", "x")
    assert "this can't be said: the character '東' (U+6771) is not in the alphabet" in refused
    assert said == "a"
    (request,) = scripted.requests
    assert request.tokens.tolist() == RENDERER.prompt([Message("user", "x")])


def test_a_turn_that_is_cut_ends_the_conversation():
    config = ChatConfig(max_turn_tokens=2)
    shown = talk(Scripted("abcdef", "b"), "x", "y", config=config)
    assert shown[0] == "ab"
    assert "cut after 2 tokens" in shown[1]
    assert shown[2] == "b"


def test_tokens_and_logprobs_are_shown_on_demand():
    shown = talk(Scripted("ab", "c", "d"), "x", "/tokens", "y", "/logprobs", "z")
    assert shown[:2] == ["ab", "c\n'c' '<end>'"]
    assert shown[2].splitlines()[1].split()[1:] == ["-0.5000", "'d'"]


def test_an_unknown_tool_is_answered_and_calls_have_an_end():
    shown = talk(Scripted(*["abacus(1)"] * 20), "x")
    assert shown[1] == "abacus answers: there is no tool 'abacus'; use calculator"
    assert len(shown) < 20


def test_commands_that_are_unknown_show_the_help():
    assert "/logprobs" in talk(Scripted(), "/what")[0]
    assert talk(Scripted(), "/tools", "/quit", "x")[0].startswith("calculator(expression)")


def test_the_system_message_comes_first():
    scripted = Scripted("a")
    talk(scripted, "x", config=ChatConfig(system="be brief"))
    text = RENDERER.text(scripted.requests[0].tokens.tolist())
    assert text == "<system>be brief<user>x<assistant>"


def test_a_conversation_can_be_held_without_a_terminal():
    async def run():
        conversation = Conversation(Speaker(RENDERER, Scripted("hello"), ()), ChatConfig())
        return await conversation.say("hi")

    (spoken,) = trio.run(run)
    assert spoken.message.content == "hello"
