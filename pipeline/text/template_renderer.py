"""The renderer of pretrained models: by their own chat template, token-exact.

Invariant: a delta has the same ids whatever the policy said before (proved at the start, see
`probe`), and no content gives a special id. What the policy sampled is never rendered again,
unless `history` is "split": then as the prompt of a new sample.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...envs.messages import Message, ToolCall
from ..errors import ConfigError
from ..types import FinishReason
from .chat_format import QUESTION, ChatFormat
from .chat_template import ChatTemplate, TemplateRefusal
from .conversation import ToolSchema
from .probe import prove
from .template_config import DETECT, TemplateConfig
from .tokenizer import Tokenizer
from .toolcalls import FORMATS, Format, detect_format, parse_turn
from .veil import lift

_CALL = ToolCall("zqtoolqz", {"word": "zqwordqz"})
# Tokens that end a turn of the models that have them, whether or not the template writes them.
_CLOSING_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")


@dataclass(frozen=True)
class TemplateSource:
    """A model's chat template and what it reads.

    Attributes:
      template: in Jinja.
      special_texts: `bos_token` and the like, with their texts.
      stop_ids: ids that the model's files name as ends of what it says.
    """

    template: str
    special_texts: Mapping[str, str]
    stop_ids: tuple[int, ...] = ()


class TemplateRenderer:
    """The chat format of a pretrained model.

    A template that knows no tools gets them in its system message, and their answers in the
    user's turns, in the Hermes format.

    Args:
      tools: what the policy may call, as JSON schemas.

    Raises:
      ConfigError: where the proof fails, with what the template does.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: TemplateSource,
        tools: Sequence[ToolSchema] = (),
        config: TemplateConfig | None = None,
    ) -> None:
        self._config = config or TemplateConfig()
        self._tokenizer = tokenizer
        self._tools = tuple(tools)
        date = datetime.date.fromisoformat(self._config.date)
        variables: dict[str, Any] = {**source.special_texts, **self._config.variables}
        template = ChatTemplate(source.template, variables, date=date)
        self._chat = prove(template, tokenizer, self._tools)
        self._opening = self._opening_ids()
        self._format = self._tool_format(source.template)
        self._stop_ids = self._all_stop_ids(source.stop_ids)

    @property
    def chat_format(self) -> ChatFormat:
        """What was found out about the template."""
        return self._chat

    @property
    def tokenizer(self) -> Tokenizer:
        """The one that it was made with."""
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """All ids are below this."""
        return self._tokenizer.vocab_size

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """All ids that close a turn: the template's own first, then those usual for the model."""
        return self._stop_ids

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a whole conversation, ending with the generation prompt."""
        return self._ids(self._chat.writer.write(messages, generate=True))

    def delta(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids to append after a closed turn, ending with the generation prompt.

        Raises:
          ValueError: for an assistant message; a message that the template can't write; an
            answer without a tool's name where the template writes it.
        """
        if any(message.role == "assistant" for message in messages):
            raise ValueError("delta takes no assistant message: use the ids it was sampled as")
        if self._chat.names_tools and any(_is_nameless(message) for message in messages):
            raise ValueError(
                "the chat template writes the name of the tool that answers; give the messages "
                "of tools a name"
            )
        return self._ids(self._chat.after(messages))[1:]

    def turn(self, message: Message) -> list[int]:
        """Return an assistant message as the ids that sampling would give, closing id included.

        Raises:
          ConfigError: where the template writes it otherwise than the policy would speak.
        """
        if message.role != "assistant":
            raise ValueError(f"turn takes an assistant message, got role {message.role!r}")
        # Before the question some templates write something else where a turn follows.
        opening = _after_question(self._chat.writer.write([QUESTION], generate=True))
        closed = _after_question(self._chat.closed([QUESTION, message]))
        if not closed.startswith(opening):
            raise ConfigError(
                f"the chat template opens the policy's turns by {opening!r} and writes this one "
                f"as {closed[:200]!r}, which the policy can't say; give the turn reasoning, or "
                "leave its reasoning out"
            )
        thoughts = self._chat.writer.veil.hide(message.reasoning.strip())
        if thoughts not in closed:
            raise ConfigError(
                f"the chat template leaves out the reasoning {message.reasoning[:60]!r}; leave "
                "it out of demonstrations"
            )
        before, ids = self._ids(opening), self._ids(closed)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        # The last token before the turn and the first one of it would become one together.
        closing = self._chat.said.token
        return self._ids(closing + closed[len(opening) :])[1:]

    def rewritten(self, ids: Iterable[int], messages: Sequence[Message]) -> list[int] | None:
        """Return the whole conversation's ids where its template has changed what `ids` say.

        Args:
          ids: what the policy has read and said.
          messages: the whole conversation; those after the policy's last turn aren't in `ids`.

        Returns:
          None where `delta` goes on from `ids`, and with the history "keep".
        """
        if self._config.history == "keep":
            return None
        said = max(place for place, each in enumerate(messages) if each.role == "assistant") + 1
        whole = self._chat.writer.write(messages, generate=True)
        new = messages[said:]
        after = self._chat.after(new).removeprefix(self._chat.closing(new).token)
        if lift(whole).text == self._tokenizer.decode(list(map(int, ids))) + lift(after).text:
            return None
        return None if self._keeps(messages[:said], whole, after) else self._ids(whole)

    def parse(self, ids: Sequence[int]) -> Message:
        """Return the assistant message that sampled ids spell, with its reasoning and calls."""
        closed = len(ids) > 0 and ids[-1] in self._stop_ids
        turn = parse_turn(
            ids[:-1] if closed else ids,
            self._format,
            self._tokenizer,
            self._tools,
            finish=FinishReason.STOP if closed else FinishReason.LENGTH,
            prompt=self._opening,
        )
        return Message("assistant", turn.content, turn.calls, turn.reasoning)

    def text(self, ids: Sequence[int]) -> str:
        """Return the ids as text, special tokens by name."""
        return self._tokenizer.decode(ids)

    def _keeps(self, said: Sequence[Message], whole: str, after: str) -> bool:
        """Say whether the template keeps what was read and said, but for the turn's spelling."""
        thoughts = self._chat.writer.veil.hide(said[-1].reasoning.strip())
        try:
            closed = self._chat.closed(said)
            return (
                whole == closed + after and thoughts in closed and self._chat.begins_as_read(said)
            )
        except (ConfigError, TemplateRefusal):
            return False

    def _ids(self, veiled: str) -> list[int]:
        marked = lift(veiled)
        return self._tokenizer.encode_markup(marked.text, marked.plain)

    def _tool_format(self, template: str) -> Format:
        name = self._config.tool_format
        if name != DETECT:
            return FORMATS[name]
        if not self._chat.writer.abilities.tools:
            return FORMATS["hermes"]
        known = detect_format(template, self._tokenizer.specials)
        written = self._written_call()
        names = [*([known] if known else []), *FORMATS]
        found = next((name for name in names if self._reads(written, FORMATS[name])), known)
        if written and found is None and self._tools:
            raise ConfigError(
                f"the chat template writes a call as {self.text(written)[:200]!r}, which no tool "
                "format here reads; choose the one that the model uses by chat.tool_format, or "
                "add it (docs/tool_calls.md)"
            )
        return FORMATS[found or "hermes"]

    def _written_call(self) -> list[int]:
        """Return a made-up call as the template writes it; empty where it can't be said so."""
        for reasoning in ("", "zqthoughtqz"):
            try:
                return self.turn(Message("assistant", "", (_CALL,), reasoning))[:-1]
            except (ConfigError, TemplateRefusal):
                continue
        return []

    def _reads(self, written: Sequence[int], one: Format) -> bool:
        calls = parse_turn(written, one, self._tokenizer, prompt=self._opening).calls
        return [(call.status, call.arguments) for call in calls] == [("ok", _CALL.arguments)]

    def _opening_ids(self) -> list[int]:
        """Return the ids of the generation prompt, which may open the reasoning."""
        asked = self._chat.writer.write([QUESTION])
        opened = self._chat.writer.write([QUESTION], generate=True)
        if opened.startswith(asked):
            return self._ids(opened.removeprefix(asked))
        return self._ids(_after_question(opened))

    def _all_stop_ids(self, named: Sequence[int]) -> tuple[int, ...]:
        specials = self._tokenizer.specials
        own = self._chat.said.last_token, self._chat.called.last_token
        texts = (*own, *self._format.stops, *_CLOSING_TOKENS)
        found = [specials[text] for text in texts if text in specials]
        return tuple(dict.fromkeys([*found, *named]))


def _after_question(text: str) -> str:
    return text.rpartition(QUESTION.content)[2]


def _is_nameless(message: Message) -> bool:
    return message.role == "tool" and not message.name
