"""Talk to a policy: its own sampler and renderer, tools that are run, tokens on demand.

Token in, token out, as in training: the ids of the conversation only grow, and what the policy
said is never encoded again.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import trio

from ..envs.messages import Message, ToolCall
from ..envs.tools import Tool
from .errors import check
from .text.renderer import Renderer
from .types import Completion, FinishReason, SampleRequest

MAX_TOOL_ROUNDS = 8  # the policy calls tools at most so often before it must wait for the user

HELP = """\
/tokens    show what is sampled as single tokens, or no longer
/logprobs  show each token's logprob, or no longer
/tools     name the tools
/new       forget the conversation
/quit      leave (or Ctrl-D)"""


@dataclass(frozen=True)
class ChatConfig:
    """How a policy is talked to.

    Raises:
      ConfigError: for impossible numbers.
    """

    system: str = ""
    """a system message that every conversation starts with"""
    tools: tuple[str, ...] = ()
    """environments whose tools the policy may call, such as calculator"""
    temperature: float = 0.7
    """0 takes the most likely token"""
    max_turn_tokens: int = 512
    """a turn of the policy ends after so many tokens"""
    context_tokens: int = 2048
    """longest conversation, answers included"""
    seed: int = 0
    """of the sampled tokens"""
    tokens: bool = False
    """show what is sampled as single tokens from the start"""
    logprobs: bool = False
    """show each token's logprob from the start"""

    def __post_init__(self) -> None:
        check(self.temperature >= 0, "temperature", self.temperature, ">= 0 and finite")
        check(self.max_turn_tokens >= 1, "max_turn_tokens", self.max_turn_tokens, ">= 1")
        check(self.context_tokens >= 2, "context_tokens", self.context_tokens, ">= 2")
        check(0 <= self.seed < 2**32, "seed", self.seed, "in 0..2**32 - 1")


@dataclass(frozen=True)
class Speaker:
    """What speaks.

    Attributes:
      tools: by name.
    """

    renderer: Renderer
    sample: Callable[[SampleRequest], Awaitable[Completion]]
    tools: Mapping[str, Tool]


@dataclass(frozen=True, eq=False)
class Spoken:
    """One turn of the policy, or an answer of a tool.

    Attributes:
      completion: None for what a tool answered.
    """

    message: Message
    completion: Completion | None = None


@dataclass
class Conversation:
    """A conversation that goes on, until a turn is cut.

    Attributes:
      number: the conversation's own randomness.
      ids: all tokens so far.
      over: why nothing can follow; "" while it goes on.
    """

    speaker: Speaker
    config: ChatConfig
    number: int = 0
    ids: list[int] = field(default_factory=list)
    over: str = ""

    def next(self) -> "Conversation":
        """Begin another one."""
        return Conversation(self.speaker, self.config, self.number + 1)

    async def say(self, text: str) -> list[Spoken]:
        """Say something to the policy.

        Returns:
          What came back, in order: turns of the policy, and the tools' answers between them.
        """
        messages: Sequence[Message] = (Message("user", text),)
        spoken: list[Spoken] = []
        for _ in range(1 + MAX_TOOL_ROUNDS):
            self._hear(messages)
            turn = await self._speak()
            spoken.append(turn)
            if self.over or not turn.message.tool_calls:
                break
            messages = [await self._call(call) for call in turn.message.tool_calls]
            spoken.extend(Spoken(message) for message in messages)
        return spoken

    def _hear(self, messages: Sequence[Message]) -> None:
        renderer = self.speaker.renderer
        if self.ids:
            self.ids += renderer.delta(messages)
            return
        system = [Message("system", self.config.system)] if self.config.system else []
        self.ids += renderer.prompt([*system, *messages])

    async def _speak(self) -> Spoken:
        config, renderer = self.config, self.speaker.renderer
        request = SampleRequest(
            tokens=np.array(self.ids, np.int32),
            max_tokens=max(1, min(config.max_turn_tokens, config.context_tokens - len(self.ids))),
            stop_ids=renderer.stop_ids,
            key=(config.seed, self.number),
            temperature=config.temperature,
        )
        completion = await self.speaker.sample(request)
        ids = completion.tokens.tolist()
        self.ids += ids
        self.over = _why_cut(completion.finish, config)
        return Spoken(renderer.parse(ids), completion)

    async def _call(self, call: ToolCall) -> Message:
        tool = self.speaker.tools.get(call.name)
        if tool is None:
            known = ", ".join(self.speaker.tools) or "none"
            content = f"there is no tool {call.name!r}; the tools are: {known}"
        else:
            content = (await tool(call)).content
        return Message("tool", content, name=call.name, tool_call_id=call.id)


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
                write(_describe_tools(speaker.tools.values()))
            case text if text.startswith("/"):
                write(HELP)
            case text:
                for spoken in await conversation.say(text):
                    write(describe(spoken, speaker.renderer, config))
                if conversation.over:
                    write(f"({conversation.over}; this conversation is over)")
                    conversation = conversation.next()


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


def _why_cut(finish: FinishReason, config: ChatConfig) -> str:
    match finish:
        case FinishReason.STOP:
            return ""
        case FinishReason.LENGTH:
            return f"cut after {config.max_turn_tokens} tokens, or at the context's end"
        case FinishReason.PROMPT_TOO_LONG:
            return f"no room is left in {config.context_tokens} tokens"
