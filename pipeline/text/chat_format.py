"""A chat template and how it closes turns: what a delta is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ...envs.messages import Message, ToolCall
from ..errors import ConfigError
from .chat_template import TemplateRefusal
from .closing import MARK, Closing, Tails, after_mark
from .conversation import UNNAMED, Writer

QUESTION = Message("user", "zqquestionqz")


@dataclass(frozen=True)
class ChatFormat:
    """A writer of conversations, and how the turns close that it writes.

    Attributes:
      tails: finds closing tokens.
      said: the closing of a turn without calls.
      called: that of a turn with calls.
      names_tools: the template writes an answer's tool by the name in the call.
      notes: what was found out beside, for people.
    """

    writer: Writer
    tails: Tails
    said: Closing
    called: Closing
    names_tools: bool = False
    notes: tuple[str, ...] = ()

    def closing(self, messages: Sequence[Message]) -> Closing:
        """Say how the turn closes that these messages answer."""
        return self.called if messages and messages[0].role == "tool" else self.said

    def closed(self, messages: Sequence[Message]) -> str:
        """Return a conversation that ends with a turn, up to the token that closes it.

        Raises:
          ConfigError: where the template doesn't close the turn as it closes others.
        """
        text = self.writer.write(messages)
        called = any(call.status == "ok" for call in messages[-1].tool_calls)
        closing = self.called if called else self.said
        ending = closing.trailer if closing.is_opening else closing.last_token + closing.trailer
        if not text.endswith(ending):
            raise ConfigError(
                f"the chat template ends a turn by {text[-40:]!r}, other turns by {ending!r}; "
                f"the turn says {messages[-1].content[:100]!r}"
            )
        return text[: len(text) - len(ending)] + closing.last_token

    def begins_as_read(self, messages: Sequence[Message]) -> bool:
        """Say whether a conversation that ends with a turn begins with what the policy read.

        That is all before the turn, and how the turn was opened, reasoning maybe included.
        """
        return self.closed(messages).startswith(self.writer.write(messages[:-1], generate=True))

    def after(self, messages: Sequence[Message]) -> str:
        """Return what stands between a closed turn and the next one, closing token included.

        The turn before is a made-up one, which calls the tools that the messages answer.

        Raises:
          TemplateRefusal: where the template can't write the messages.
        """
        answers = len(list(takewhile(_is_answer, messages)))
        try:
            return self.after_turns([QUESTION, turn_before(messages[:answers])], messages)
        except TemplateRefusal:
            if answers < 2:
                raise
        # Some templates write one call in a turn, but all of its answers.
        return self.after_turns([QUESTION, turn_before(messages[:1])], messages)

    def after_turns(self, history: Sequence[Message], messages: Sequence[Message]) -> str:
        """Return what stands after a history whose last turn ends with the mark."""
        tail = after_mark(self.writer.write([*history, *messages], generate=True))
        return self.tails.cut(tail, self.closing(messages))


def turn_before(answers: Sequence[Message]) -> Message:
    """Make up the turn that tools' messages answer, or one without calls for none; with the mark.

    The mark is the last thing that the policy says in it.
    """
    if not answers:
        return Message("assistant", MARK)
    calls = [
        ToolCall(answer.name or UNNAMED, {"word": MARK}, id=answer.tool_call_id)
        for answer in answers
    ]
    return Message("assistant", "", tuple(calls))


def _is_answer(message: Message) -> bool:
    return message.role == "tool"
