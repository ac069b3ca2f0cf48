"""Shows a conversation line by line: what is thought, said and called, and tokens on demand."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import trio

from ...envs.messages import ToolCall
from ...envs.tools import Tool
from ..errors import ConfigError
from ..text.renderer import Renderer
from ..types import Completion
from .conversation import ChatConfig, Conversation, Speaker, Spoken

HELP = """\
/tokens    show what is sampled as single tokens, or no longer
/logprobs  show each token's logprob, or no longer
/tools     name the tools
/new       forget the conversation
/quit      leave (or Ctrl-D)"""


async def converse(
    speaker: Speaker,
    config: ChatConfig,
    *,
    read: Callable[[], str | None],
    write: Callable[[str], None],
) -> None:
    """Talk until the user has had enough.

    Args:
      read: waits for a line of the user's; None at the end. Called in a thread.
      write: shows a text to the user.
    """
    conversation = Conversation(speaker, config)
    while (line := await trio.to_thread.run_sync(read, abandon_on_cancel=True)) is not None:
        match line.strip():
            case "":
                continue
            case "/quit":
                return
            case "/new":
                conversation = conversation.next()
                write("(a new conversation)")
            case "/tokens":
                config = replace(config, tokens=not config.tokens)
            case "/logprobs":
                config = replace(config, logprobs=not config.logprobs)
            case "/tools":
                write(_describe_tools(speaker.tools))
            case text if text.startswith("/"):
                write(HELP)
            case text:
                for shown in await _say(conversation, text, config):
                    write(shown)
                if conversation.over:
                    write(f"({conversation.over}; this conversation is over)")
                    conversation = conversation.next()


async def _say(conversation: Conversation, text: str, config: ChatConfig) -> list[str]:
    try:
        turns = await conversation.say(text)
    except (ConfigError, ValueError) as error:
        return [f"(this can't be said: {error})"]
    return [describe(turn, conversation.speaker.renderer, config) for turn in turns]


def describe(spoken: Spoken, renderer: Renderer, config: ChatConfig) -> str:
    """Put a turn into lines for people: what was thought, said and called, and its tokens."""
    message = spoken.message
    if spoken.completion is None:
        return f"{message.name or 'tool'} answers: {message.content}"
    lines = [f"(thinks: {message.reasoning})"] if message.reasoning else []
    if message.content or not message.tool_calls:
        lines.append(message.content)
    lines += map(_describe_call, message.tool_calls)
    if config.tokens or config.logprobs:
        lines.append(_describe_tokens(spoken.completion, renderer, config))
    return "\n".join(lines)


def _describe_call(call: ToolCall) -> str:
    if call.status != "ok":
        return f"(a call that is {call.status}: {call.raw})"
    given = call.argument if call.argument is not None else _named(call.arguments)
    return f"calls {call.name}({given})"


def _named(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _describe_tokens(completion: Completion, renderer: Renderer, config: ChatConfig) -> str:
    """Return one line a token where logprobs are asked for, else all tokens in one line."""
    texts = [repr(renderer.text([index])) for index in completion.tokens.tolist()]
    if not config.logprobs:
        return " ".join(texts)
    numbers = zip(completion.tokens.tolist(), completion.logprobs.tolist(), texts, strict=True)
    return "\n".join(f"{index:8d} {logprob:9.4f}  {text}" for index, logprob, text in numbers)


def _describe_tools(tools: Iterable[Tool]) -> str:
    lines = [f"{tool.name}({', '.join(tool.types)}): {tool.description}" for tool in tools]
    return "\n".join(lines) or "no tools; start with --tools calculator, for example"
