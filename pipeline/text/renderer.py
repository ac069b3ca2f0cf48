"""Messages to token ids and back, incrementally and prefix-exact.

Invariant (law 1): the ids of a conversation only grow. `prompt(first) + sampled ids +
delta(answer)` is the next request, whatever was sampled; for a turn in its canonical spelling
it equals `prompt(first + turn + answer)`. Model output is never decoded and encoded again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...envs.messages import Message
from ..errors import ConfigError
from .character_tokenizer import END, SPECIALS, CharacterTokenizer
from .toolcalls import parse_tool_call

PRINTABLE_ASCII = "\n" + "".join(map(chr, range(32, 127)))


class Renderer(Protocol):
    """What the pipeline needs of a chat format. Pure: equal arguments, equal ids."""

    @property
    def vocab_size(self) -> int:
        """All ids are below this."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Sampling one of these closes the turn; the id is kept."""
        ...

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, ending with the generation prompt.

        Raises:
          ConfigError: where the text can't be expressed in the vocabulary.
          ValueError: for an unknown role.
        """
        ...

    def delta(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids to append after a closed turn, ending with the generation prompt.

        They don't depend on anything said before. No text of an environment raises:
        what the vocabulary can't express is replaced.

        Raises:
          ValueError: for an unknown role, or an assistant message: its ids are the sampled ones.
        """
        ...

    def rewritten(self, ids: Iterable[int], messages: Sequence[Message]) -> list[int] | None:
        """Return the ids of a whole conversation where `delta` must not go on from `ids`.

        That is where the format has changed what was said before, and is asked to.

        Args:
          ids: all that the policy has read and said.
          messages: the whole conversation; those after the policy's last turn aren't in `ids`.

        Returns:
          The prompt of a new sample, or None: append `delta(new messages)`.
        """
        ...

    def turn(self, message: Message) -> list[int]:
        """Return an assistant message as the ids that sampling would give, closing id included.

        Raises:
          ConfigError: where no sequence of sampled ids gives this message.
        """
        ...

    def parse(self, ids: Sequence[int]) -> Message:
        """Return the assistant message that some sampled ids spell. Never raises."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Return the ids as text for people. Never raises."""
        ...


@dataclass(frozen=True)
class TextConfig:
    """The alphabet of a character-level run."""

    characters: str = PRINTABLE_ASCII
    """All characters that the policy may read or write, each once."""
    words: tuple[str, ...] = ()
    """Texts that are one token each in the policy's and the tools' messages."""
    stop_characters: str = ""
    """Characters that end the policy's turn as soon as they are sampled, besides `<end>`."""

    def __post_init__(self) -> None:
        CharacterTokenizer(self.characters, self.words)
        if missing := sorted(set(self.stop_characters) - set(self.characters)):
            raise ConfigError(
                f"text.stop_characters must be in text.characters, got {missing} which are not; "
                "add them to text.characters"
            )


class CharacterRenderer:
    """The chat format of character-level runs.

    A message is its role's token and then its characters; the next role's token closes it.
    Only the policy's turns close with `<end>`, or with one of the stop characters.

    A character outside the alphabet is a ConfigError in `prompt` and `turn`, where it comes
    from the user's tasks and demonstrations, and the token `<unknown>` in `delta`, where it
    comes from a tool in the middle of a run and must not end it.

    Example:
      >>> renderer = CharacterRenderer(TextConfig("0123456789+"))
      >>> renderer.text(renderer.prompt([Message("user", "1+2")]))
      '<user>1+2<assistant>'
      >>> renderer.parse(renderer.turn(Message("assistant", "3"))).content
      '3'
    """

    def __init__(self, config: TextConfig) -> None:
        self._tokenizer = CharacterTokenizer(config.characters, config.words)
        self._end = self._tokenizer.special_id(END)
        self._stop_ids = (self._end, *self._tokenizer.encode(config.stop_characters, words=False))
        self._roles = {
            "system": self._tokenizer.special_id("<system>"),
            "user": self._tokenizer.special_id("<user>"),
            "assistant": self._tokenizer.special_id("<assistant>"),
            "tool": self._tokenizer.special_id("<tool>"),
        }

    @property
    def vocab_size(self) -> int:
        """All ids are below this."""
        return self._tokenizer.vocab_size

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The id of `<end>` and those of the stop characters."""
        return self._stop_ids

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation; ConfigError for an unknown character."""
        ids = []
        for message in messages:
            ids.append(self._role(message))
            if message.role == "assistant":
                ids.extend(self.turn(message))
            else:
                ids.extend(self._tokenizer.encode(message.content, words=_has_words(message)))
        ids.append(self._roles["assistant"])
        return ids

    def delta(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of new messages; an unknown character becomes `<unknown>`."""
        ids = []
        for message in messages:
            if message.role == "assistant":
                raise ValueError("delta takes no assistant message: use the ids it was sampled as")
            ids.append(self._role(message))
            ids.extend(self._tokenizer.encode_lossy(message.content, words=_has_words(message)))
        ids.append(self._roles["assistant"])
        return ids

    def rewritten(self, ids: Iterable[int], messages: Sequence[Message]) -> None:
        """Return None: this format changes nothing that was said."""

    def turn(self, message: Message) -> list[int]:
        """Return the ids of a scripted turn; ConfigError where sampling can't give them."""
        if message.role != "assistant":
            raise ValueError(f"turn takes an assistant message, got role {message.role!r}")
        ids = self._tokenizer.encode(message.content)
        if any(index in self._stop_ids for index in ids[:-1]):
            raise ConfigError(
                f"the turn {message.content!r} goes on after one of text.stop_characters; "
                "end it there, or remove the character from text.stop_characters"
            )
        if not ids or ids[-1] not in self._stop_ids:
            ids.append(self._end)
        return ids

    def parse(self, ids: Sequence[int]) -> Message:
        """Return the message that sampled ids spell, with its tool call if it makes one."""
        body = ids[:-1] if len(ids) and ids[-1] == self._end else ids
        content = self._tokenizer.decode(body)
        call = parse_tool_call(content)
        if call is None:
            return Message("assistant", content)
        if any(index < len(SPECIALS) for index in body):
            # The argument would hold a special token's name as if it were written out.
            call = replace(call, status="malformed", argument=None)
        return Message("assistant", content, (call,))

    def text(self, ids: Sequence[int]) -> str:
        """Return the ids as text, special tokens by name."""
        return self._tokenizer.decode(ids)

    def _role(self, message: Message) -> int:
        if message.role not in self._roles:
            known = ", ".join(self._roles)
            raise ValueError(f"the role of a message must be one of {known}, got {message.role!r}")
        return self._roles[message.role]


def _has_words(message: Message) -> bool:
    """Say whether words are atomic here. User text has none, so a task can't smuggle one in."""
    return message.role == "tool"
