"""The state machine that all formats share, without its states.

Invariant: symbols are read from left to right, each a bounded number of times: once, once more
where quotes in a call were never closed, and once more where reasoning was not. What is found
doesn't depend on how the turn was cut into pieces.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ....envs.messages import ToolCall
from .grammar import Grammar, Scanner
from .reading import CallFault, CallText, Context, Draft


@dataclass(frozen=True)
class TextEvent:
    """A piece of text. The sizes of the pieces depend on the chunks, what they add up to not."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclass(frozen=True)
class CallEvent:
    """A call, complete or given up."""

    call: ToolCall


Event = TextEvent | CallEvent


class State(Protocol):
    """One state; what it returns is the next one, which may be the same."""

    @property
    def scanner(self) -> Scanner:
        """What ends a text of this state."""
        ...

    def text(self, text: str) -> "State":
        """Take text without markers, which begins at `machine.place`."""
        ...

    def marker(self, marker: str) -> tuple["State", int]:
        """Take the marker at `machine.place`; return also how many symbols of it are used up."""
        ...

    def end(self, *, truncated: bool) -> "Leftover | None":
        """Take the end of the turn."""
        ...


@dataclass(frozen=True)
class Leftover:
    """Symbols that must be read once more.

    Attributes:
      place: of the first of them in the turn.
      state: reads them.
    """

    place: int
    symbols: str
    state: State


@dataclass
class Machine:
    """What the states share: where they are, and what they have found.

    Attributes:
      token_span: from the places of symbols in the turn to tokens.
      place: of the next symbol in the turn; negative in what stands before it.
      literal: quotes inside calls no longer count, since some were never closed.
      quarantine: what is read is inside of reasoning: calls are reported, text isn't.
      events: what was reported since they were last taken.
      calls: how many calls were reported in this turn.
    """

    grammar: Grammar
    context: Context
    token_span: Callable[[int, int], tuple[int, int]]
    place: int = 0
    literal: bool = False
    quarantine: bool = False
    events: list[Event] = field(default_factory=list)
    calls: int = 0

    def emit(self, kind: Literal["reasoning", "content"], symbols: str) -> None:
        """Report text."""
        if not self.quarantine:
            self.events.append(TextEvent(kind, self.grammar.symbols.text(symbols)))

    def read(self, text: CallText) -> Sequence[Draft]:
        """Return what a text spells: one faulty draft where it can't be read."""
        limit = self.context.limits.max_characters
        try:
            if len(text.raw) > limit:
                raise CallFault("over_limit", f"the call is longer than {limit} characters")
            return self.grammar.format.read(text, self.context)
        except CallFault as fault:
            return [fault.draft()]
        except RecursionError:  # where little of the stack was left
            return [CallFault("over_limit", "the call is nested too deep").draft()]

    def report(self, drafts: Sequence[Draft], raw: str, start: int) -> None:
        """Report the calls of one attempt.

        Args:
          raw: the symbols of the attempt, markers included.
          start: their place.
        """
        spelled = self.grammar.symbols.text(raw)
        span = self.token_span(start, start + len(raw))
        for draft in drafts:
            self.calls += 1
            self.events.append(CallEvent(self._judge(draft).call(spelled, span)))

    def _judge(self, draft: Draft) -> Draft:
        if self.quarantine:
            return draft.refused("in_reasoning", "the call is inside of unfinished reasoning")
        limit = self.context.limits.max_calls
        if self.calls > limit:
            return draft.refused("over_limit", f"a turn may hold {limit} calls; this is one more")
        return draft


class Driver:
    """Feeds symbols to one state after the other."""

    def __init__(self, machine: Machine, state: State) -> None:
        self.machine = machine
        self.state = state
        self._buffer = ""

    def push(self, symbols: str, *, final: bool = False) -> None:
        """Read more symbols; all of them where they are the last."""
        buffer, at = self._buffer + symbols, 0
        while at < len(buffer):
            end, marker = self.state.scanner.find(buffer, at, final=final)
            before = self.state
            if end > at:
                self.state = before.text(buffer[at:end])
            elif not marker:
                break
            else:
                self.state, used = before.marker(marker)
                end = at + used
            self.machine.place += end - at
            at = end
        self._buffer = buffer[at:]

    def end(self, *, truncated: bool) -> None:
        """Read the end of the turn, and once more what its end shows to mean something else.

        Args:
          truncated: the turn was cut off by a limit.
        """
        self.push("", final=True)
        while (left := self.state.end(truncated=truncated)) is not None:
            self.machine.place, self.state = left.place, left.state
            self.push(left.symbols, final=True)
