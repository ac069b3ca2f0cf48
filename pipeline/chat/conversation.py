"""A conversation with a policy, tools included.

Token in, token out, as in training: the ids of the conversation only grow, and what the policy
said is never encoded again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...envs.messages import Message, ToolCall
from ...envs.tools import Tool, answer_call
from ..errors import ConfigError, check
from ..models.config import StoredWeights
from ..text.renderer import Renderer
from ..text.template_config import TemplateConfig
from ..types import Completion, FinishReason, SampleRequest

MAX_TOOL_ROUNDS = 8  # the policy calls tools at most so often before it must wait for the user


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
    context_tokens: int = 1024
    """longest conversation, answers included"""
    seed: int = 0
    """of the sampled tokens"""
    tokens: bool = False
    """show what is sampled as single tokens from the start"""
    logprobs: bool = False
    """show each token's logprob from the start"""
    weights: StoredWeights = "float32"
    """how the sampler stores the policy's weights"""
    template: TemplateConfig = field(default_factory=TemplateConfig)
    """how the policy's chat template is used"""

    def __post_init__(self) -> None:
        check(self.temperature >= 0, "temperature", self.temperature, ">= 0 and finite")
        check(self.max_turn_tokens >= 1, "max_turn_tokens", self.max_turn_tokens, ">= 1")
        check(self.context_tokens >= 2, "context_tokens", self.context_tokens, ">= 2")
        check(0 <= self.seed < 2**32, "seed", self.seed, "in 0..2**32 - 1")


@dataclass(frozen=True)
class Speaker:
    """What speaks, and the tools that it may call."""

    renderer: Renderer
    sample: Callable[[SampleRequest], Awaitable[Completion]]
    tools: Sequence[Tool]


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

        Raises:
          ConfigError, ValueError: for what the policy's format can't write; then nothing was said.
        """
        before = len(self.ids)
        try:
            return await self._exchange(text)
        except (ConfigError, ValueError):
            del self.ids[before:]
            raise

    async def _exchange(self, text: str) -> list[Spoken]:
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
        result = await answer_call(call, self.speaker.tools)
        return Message("tool", result.content, name=call.name, tool_call_id=call.id)


def _why_cut(finish: FinishReason, config: ChatConfig) -> str:
    match finish:
        case FinishReason.STOP:
            return ""
        case FinishReason.LENGTH:
            return f"cut after {config.max_turn_tokens} tokens, or at the context's end"
        case FinishReason.PROMPT_TOO_LONG:
            return f"no room is left in {config.context_tokens} tokens"
