"""From rows to what a batch is packed of, through the renderer that rollouts use.

Invariant: a conversation is rendered to exactly the ids that a rollout of it would produce; the
tools of a row are those that its renderer writes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from ..errors import ConfigError
from ..groups.packing import PackItem
from ..text.chat_template import TemplateRefusal
from ..text.conversation import ToolSchema
from ..text.renderer import Renderer
from .batch import Judged, sequence
from .rows import BadRow, Conversation, Row, conversation_of, judged_of, pair_of
from .sft import render

T = TypeVar("T", PackItem, Judged)
OnRow = Literal["skip", "error"]

RendererFor = Callable[[Sequence[ToolSchema]], Renderer]

KEPT_RENDERERS = 64  # different lists of tools whose renderers are kept


class Renderers:
    """Renders conversations, each with its own tools."""

    def __init__(self, make: RendererFor) -> None:
        self._make = make
        self._made: dict[str, Renderer] = {}

    def item(self, where: str, conversation: Conversation) -> PackItem:
        """Render a conversation.

        Raises:
          BadRow: where the chat format can't express it.
        """
        try:
            renderer = self._of(conversation.tools)
            return sequence(*render(conversation.messages, renderer, conversation.learnt))
        except (ConfigError, TemplateRefusal, ValueError) as error:
            raise BadRow(where, f"{error}; mend the row, or leave it out") from error

    def _of(self, tools: Sequence[ToolSchema]) -> Renderer:
        key = json.dumps(tools, sort_keys=True)
        if key not in self._made:
            if len(self._made) == KEPT_RENDERERS:
                del self._made[next(iter(self._made))]
            self._made[key] = self._make(tools)
        return self._made[key]


@dataclass(frozen=True)
class Taken(Generic[T]):
    """What rows have become.

    Attributes:
      examples: in the rows' order.
      skipped: how many rows were left out.
    """

    examples: list[T]
    skipped: int


@dataclass(frozen=True)
class Reader(Generic[T]):
    """Turns rows into examples.

    Attributes:
      read: one row; raises `BadRow`.
      longest: tokens of its longest sequence.
      row_tokens: T, the most that fit.
      too_long: whether a row that doesn't fit is skipped or an error.
      unusable: the same of one that can't be read.
    """

    read: Callable[[Row], T]
    longest: Callable[[T], int]
    row_tokens: int
    too_long: OnRow
    unusable: OnRow = "error"

    def take(self, rows: Sequence[Row]) -> Taken[T]:
        """Read rows; those that are skipped are left out and counted.

        Raises:
          BadRow: for a row that can't be used, where that is an error.
        """
        examples = [(row, example) for row in rows for example in self._read(row)]
        fitting = [example for row, example in examples if self._fits(row, self.longest(example))]
        return Taken(fitting, len(rows) - len(fitting))

    def _read(self, row: Row) -> Iterator[T]:
        """Yield the row's example, or nothing."""
        try:
            yield self.read(row)
        except BadRow:
            if self.unusable == "error":
                raise

    def _fits(self, row: Row, tokens: int) -> bool:
        if tokens <= self.row_tokens:
            return True
        if self.too_long == "skip":
            return False
        raise BadRow(
            row.where,
            f"{tokens} tokens don't fit into learner.row_tokens ({self.row_tokens}); raise "
            "--learner.row-tokens, shorten the row, or set --data.too-long skip",
        )


def read_conversation(row: Row, renderers: Renderers) -> PackItem:
    """Read and render one row of chat data."""
    return renderers.item(row.where, conversation_of(row))


def read_pair(row: Row, renderers: Renderers) -> Judged:
    """Read and render one pair."""
    chosen, rejected = pair_of(row)
    return Judged(renderers.item(row.where, chosen), renderers.item(row.where, rejected))


def read_judged(row: Row, renderers: Renderers) -> Judged:
    """Read and render one pair, or one answer with its label."""
    chosen, rejected = judged_of(row)
    sides = [None if it is None else renderers.item(row.where, it) for it in (chosen, rejected)]
    return Judged(*sides)


def item_tokens(item: PackItem) -> int:
    """Count the tokens of a conversation."""
    return len(item.tokens)


def judged_tokens(judged: Judged) -> int:
    """Count the tokens of the longer answer, its prompt included."""
    return max(len(item.tokens) for item in judged.items)
