"""What a tool-call format is: a record that one state machine follows.

Invariant: all that differs between formats is in a `Format`. Markers are written as text; where
the tokenizer has a token of that text, only the token counts, so text can't forge it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .reading import Reader

Kind = Literal["reasoning", "content", "call"]


@dataclass(frozen=True)
class Edge:
    """A marker inside a call that leads to another mode.

    Attributes:
      to: the mode after it.
      peek: the marker is not used up: it is the first text of the next mode.
    """

    marker: str
    to: str
    peek: bool = False


@dataclass(frozen=True)
class Mode:
    """Where in a call's text one is: outside of quotes, or in some kind of quotes.

    Attributes:
      edges: the ways out.
      closable: the end of the call counts here; in other modes it is a part of a value.
    """

    edges: tuple[Edge, ...] = ()
    closable: bool = False


@dataclass(frozen=True)
class Span:
    """The markers around a call.

    Attributes:
      open: begins a call.
      closes: each ends it; without any, the next call or the end of the turn does.
      kept: the opening marker is a part of the call's text.
      at_end: the end of the turn closes the call too.
    """

    open: str
    closes: tuple[str, ...] = ()
    kept: bool = False
    at_end: bool = False


@dataclass(frozen=True)
class Bare:
    """A call without markers: it is the whole turn.

    Attributes:
      first: the character it begins with. A turn that does is held back until its end.
      like: what a text must match, at its start, to be an attempt although it can't be read.
    """

    first: str
    like: str


@dataclass(frozen=True)
class Header:
    """Messages inside a turn, each with a header that says what it is.

    Attributes:
      start: begins a header; a turn begins inside of one.
      message: ends it; the message follows.
      ends: each ends a message; only the first of them ends reasoning.
      read: says what a header announces, and the tool where that is a call.
    """

    start: str
    message: str
    ends: tuple[str, ...]
    read: Callable[[str], tuple[Kind, str]]


@dataclass(frozen=True)
class Format:
    """How a family of models writes reasoning, content and tool calls.

    Attributes:
      read: takes the name and the arguments from one call's text.
      calls: the markers around calls.
      modes: the quoting inside calls, by name; a call begins in the mode "".
      section: the markers around all calls of a turn.
      reasoning: what opens it and what ends it, one marker or several. Where the tokenizer has
        tokens for some of these, only those count.
      inner: markers that mean something to `read` alone.
      dropped: markers without a meaning of their own; they are no content.
      stops: tokens that end a turn. As the last id of a turn one is no content.
      bare: set where a call may have no markers.
      header: set where a turn is a sequence of messages with headers.
      opener_ends_reasoning: a call's opening marker ends the reasoning before it. Off, a call
        inside of reasoning that never ends is reported and not run.
    """

    read: Reader
    calls: tuple[Span, ...] = ()
    modes: Mapping[str, Mode] = field(default_factory=lambda: {"": Mode(closable=True)})
    section: tuple[str, str] | None = None
    reasoning: tuple[tuple[str, ...], ...] = ()
    inner: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    bare: Bare | None = None
    header: Header | None = None
    opener_ends_reasoning: bool = False

    def markers(self) -> tuple[str, ...]:
        """Return all texts that mean something, those inside calls included."""
        found = [edge.marker for mode in self.modes.values() for edge in mode.edges]
        for span in self.calls:
            found += [span.open, *span.closes]
        for markers in self.reasoning:
            found += markers
        if self.header:
            found += [self.header.start, self.header.message, *self.header.ends]
        return (*found, *(self.section or ()), *self.inner, *self.dropped)
