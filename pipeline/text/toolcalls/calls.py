"""The states inside of calls.

Invariant: a call ends where its format says so outside of quotes, and else is never run. Quotes
that are never closed reach to the end of the turn; there the first marker that would have ended
the call does, and what follows it is read once more, without quotes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .format import Bare, Edge, Span
from .grammar import Scanner
from .machine import Leftover, Machine, State
from .reading import CallFault, CallText, Draft


@dataclass(frozen=True)
class MessageHeader:
    """The header of a call that is a message.

    Attributes:
      name: the tool that it names.
      symbols: the header, up to the message.
      place: of its first symbol in the turn.
    """

    name: str
    symbols: str
    place: int


class Call:
    """One call between markers. `machine.place` is where its opening marker begins."""

    def __init__(
        self,
        machine: Machine,
        span: Span,
        after: State,
        *,
        header: MessageHeader | None = None,
        misplaced: bool = False,
    ) -> None:
        """Args:
        after: the state after the call.
        header: of a call that is a message with a header.
        misplaced: the call isn't where calls must be.
        """
        self._machine = machine
        self._span = span
        self._after = after
        self._head = header.name if header else ""
        self._misplaced = misplaced
        self._opening = header.symbols if header else span.open
        self._start = header.place if header else machine.place
        self._mode = ""
        self._pieces: list[str] = []
        self._parts: list[tuple[str, list[str]]] = [("", [])]
        self._length = 0
        self._first_close: tuple[int, str] | None = None
        if span.kept:
            self._opening = ""
            self._add(span.open)

    @property
    def scanner(self) -> Scanner:
        """What means something in the present mode."""
        grammar = self._machine.grammar
        return grammar.call(self._span, self._mode, literal=self._machine.literal)

    def text(self, text: str) -> State:
        """Take a piece of the call."""
        self._add(text)
        return self

    def marker(self, marker: str) -> tuple[State, int]:
        """End the call, or change the mode."""
        if self._is_closable():
            if marker in self._span.closes:
                self._finish(marker)
                return self._after, len(marker)
            if marker in self._machine.grammar.interrupters:
                self._interrupt()
                return self._after, 0
        if (edge := self._edge(marker)) is not None:
            return self, self._follow(edge)
        if self._first_close is None:
            self._first_close = (self._length, marker)
        self._add(marker)
        return self, len(marker)

    def end(self, *, truncated: bool) -> Leftover | None:
        """Finish the call if the end of the turn closes it."""
        open_ended = self._span.at_end or not self._span.closes
        if not truncated and self._first_close and not self._is_closable():
            return self._cut(*self._first_close)
        if not truncated and open_ended:
            self._finish("")
        else:
            self._report([self._unclosed()], "")
        return None

    def _add(self, text: str) -> None:
        self._pieces.append(text)
        self._parts[-1][1].append(text)
        self._length += len(text)

    def _is_closable(self) -> bool:
        return self._machine.literal or self._machine.grammar.format.modes[self._mode].closable

    def _edge(self, marker: str) -> Edge | None:
        edges = self._machine.grammar.format.modes[self._mode].edges
        return next((edge for edge in edges if edge.marker == marker), None)

    def _follow(self, edge: Edge) -> int:
        self._mode = edge.to
        self._parts.append((edge.to, []))
        if edge.peek:
            return 0
        self._pieces.append(edge.marker)
        self._length += len(edge.marker)
        return len(edge.marker)

    def _interrupt(self) -> None:
        if self._span.closes:
            self._report([self._unclosed()], "")
        else:
            self._finish("")

    def _finish(self, closer: str) -> None:
        if self._misplaced:
            fault = CallFault("malformed", "the call is outside of the section of calls")
            self._report([fault.draft()], closer)
            return
        parts = tuple((mode, "".join(pieces)) for mode, pieces in self._parts)
        raw = "".join(self._pieces)
        text = CallText(raw, parts, self._span.open, closer, self._head)
        self._report(self._machine.read(text), closer)

    def _cut(self, length: int, marker: str) -> Leftover:
        raw = "".join(self._pieces)
        fault = CallFault("malformed", "a quote in the call is never closed", self._head)
        if marker in self._span.closes:
            raw, rest, closer = raw[:length], raw[length + len(marker) :], marker
        else:
            raw, rest, closer = raw[:length], raw[length:], ""
        self._pieces = [raw]
        self._report([fault.draft()], closer)
        self._machine.literal = True
        place = self._start + len(self._opening) + length + len(closer)
        return Leftover(place, rest, self._after)

    def _unclosed(self) -> Draft:
        closes = self._machine.grammar.symbols.text("".join(self._span.closes[:1]))
        problem = f"the call is not closed; end it with {closes}" if closes else ""
        return CallFault("unclosed", problem or "the call is not closed", self._head).draft()

    def _report(self, drafts: Sequence[Draft], closer: str) -> None:
        raw = self._opening + "".join(self._pieces) + closer
        self._machine.report(drafts, raw, self._start)


class BareCall:
    """A turn that may be one call: only its end tells."""

    def __init__(self, machine: Machine, bare: Bare, start: int) -> None:
        self._machine = machine
        self._bare = bare
        self._pieces: list[str] = []
        self._start = start
        self.scanner = Scanner(())

    def text(self, text: str) -> State:
        """Take a piece of the turn."""
        self._pieces.append(text)
        return self

    def marker(self, marker: str) -> tuple[State, int]:
        """There are no markers here."""
        return self.text(marker), len(marker)

    def end(self, *, truncated: bool) -> Leftover | None:
        """Report the turn as calls, as a wrong attempt, or as content."""
        raw = "".join(self._pieces)
        if re.match(self._bare.like, self._machine.grammar.symbols.text(raw)) is None:
            self._machine.emit("content", raw)
        elif truncated:
            fault = CallFault("unclosed", "the call is not closed")
            self._machine.report([fault.draft()], raw, self._start)
        else:
            drafts = self._machine.read(CallText(raw, (("", raw),)))
            self._machine.report(drafts, raw, self._start)
        return None
