"""The states outside of calls: the start of a turn, content, reasoning, sections, headers.

Invariant: only the format's markers change a state, but for the first character of a turn in
formats whose calls have no markers. Reasoning that doesn't end keeps every call in it from being
run.
"""

from .calls import BareCall, Call, MessageHeader
from .grammar import Scanner
from .machine import Leftover, Machine, State
from .reading import CallFault


def first_state(machine: Machine) -> State:
    """Return the state in which a turn begins, where no prompt says otherwise."""
    return Start(machine) if machine.grammar.format.bare else outside(machine)


def outside(machine: Machine) -> State:
    """Return the state between messages, or else content."""
    return Header(machine) if machine.grammar.format.header else Content(machine)


class Start:
    """The start of a turn, where its first character may make a call of it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._spaces: list[str] = []
        self.scanner = machine.grammar.content

    def text(self, text: str) -> State:
        """Wait for the first character that isn't white space."""
        words = text.lstrip()
        bare = self._machine.grammar.format.bare
        if bare and words.startswith(bare.first):
            start = self._machine.place + len(text) - len(words)
            return BareCall(self._machine, bare, start).text(words)
        self._spaces.append(text)
        return Content(self._machine).text("".join(self._spaces)) if words else self

    def marker(self, marker: str) -> tuple[State, int]:
        """Leave the marker to the state of content."""
        return Content(self._machine), 0

    def end(self, *, truncated: bool) -> Leftover | None:
        """There was nothing."""
        return None


class Content:
    """What the policy says."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.scanner = machine.grammar.content

    def text(self, text: str) -> State:
        """Report text."""
        self._machine.emit("content", text)
        return self

    def marker(self, marker: str) -> tuple[State, int]:
        """Go where the marker leads; one that leads nowhere is dropped."""
        return self._next(marker), len(marker)

    def end(self, *, truncated: bool) -> Leftover | None:
        """Nothing is open."""
        return None

    def _next(self, marker: str) -> State:
        chosen = self._machine.grammar.format
        for opened, *closes in chosen.reasoning:
            if marker == opened:
                return Reasoning(self._machine, tuple(closes))
        if chosen.section and marker == chosen.section[0]:
            return Section(self._machine)
        for span in chosen.calls:
            if marker == span.open:
                return Call(self._machine, span, after=self, misplaced=bool(chosen.section))
        return outside(self._machine)


class Reasoning:
    """What the policy thinks. Openers of calls in it are remembered, in case it never ends."""

    def __init__(self, machine: Machine, closes: tuple[str, ...]) -> None:
        self._machine = machine
        self._closes = closes
        self._calls: list[str] = []
        self._place = 0
        self.scanner = machine.grammar.reasoning(closes)

    def text(self, text: str) -> State:
        """Report text."""
        self._machine.emit("reasoning", text)
        if self._calls:
            self._calls.append(text)
        return self

    def marker(self, marker: str) -> tuple[State, int]:
        """End the reasoning, or remember where a call begins."""
        if marker in self._closes:
            return outside(self._machine), len(marker)
        if self._machine.grammar.format.opener_ends_reasoning:
            return outside(self._machine), 0
        if not self._calls:
            self._place = self._machine.place
        self._machine.emit("reasoning", marker)
        self._calls.append(marker)
        return self, len(marker)

    def end(self, *, truncated: bool) -> Leftover | None:
        """Have the calls read, to be reported as not to be run."""
        if not self._calls or self._machine.quarantine:
            return None
        self._machine.quarantine = True
        return Leftover(self._place, "".join(self._calls), outside(self._machine))


class Section:
    """Between the markers around all calls, outside of a call."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._start = machine.place
        self._calls = machine.calls
        self._noise: list[str] = []
        self.scanner: Scanner = machine.grammar.section

    def text(self, text: str) -> State:
        """Take text that is neither content nor a call."""
        self._noise.append(text)
        return self

    def marker(self, marker: str) -> tuple[State, int]:
        """Begin a call, or end the section."""
        for span in self._machine.grammar.format.calls:
            if marker == span.open:
                return Call(self._machine, span, after=self), len(marker)
        opened, closed = self._machine.grammar.format.section or ("", "")
        if marker == opened:
            return self, len(marker)
        if "".join(self._noise).strip():
            self._report(CallFault("malformed", "the section of calls holds no call"), closed)
        return Content(self._machine), len(marker)

    def end(self, *, truncated: bool) -> Leftover | None:
        """Report a section that was opened and holds no call."""
        self._report(CallFault("unclosed", "the turn ended where calls were to follow"), "")
        return None

    def _report(self, fault: CallFault, closed: str) -> None:
        if self._machine.calls == self._calls:
            opened = (self._machine.grammar.format.section or ("", ""))[0]
            raw = opened + "".join(self._noise) + closed
            self._machine.report([fault.draft()], raw, self._start)


class Header:
    """The header of a message inside the turn."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._start = machine.place
        self._pieces: list[str] = []
        self.scanner = machine.grammar.header

    def text(self, text: str) -> State:
        """Take a piece of the header."""
        if not self._pieces:
            self._start = self._machine.place
        self._pieces.append(text)
        return self

    def marker(self, marker: str) -> tuple[State, int]:
        """Begin the message; a header that ends without one is dropped."""
        header = self._machine.grammar.format.header
        if header is None or marker != header.message:
            return Header(self._machine), len(marker)
        return self._message(marker), len(marker)

    def end(self, *, truncated: bool) -> Leftover | None:
        """Report the header of a call that never came."""
        kind, name = self._read()
        if kind == "call":
            fault = CallFault("unclosed", "the turn ended before the call's message", name)
            self._machine.report([fault.draft()], "".join(self._pieces), self._start)
        return None

    def _message(self, marker: str) -> State:
        kind, name = self._read()
        span = self._machine.grammar.message_span
        if kind == "reasoning":
            return Reasoning(self._machine, span.closes[:1])
        if kind == "content":
            return Content(self._machine)
        header = MessageHeader(name, "".join(self._pieces) + marker, self._start)
        return Call(self._machine, span, Header(self._machine), header=header)

    def _read(self) -> tuple[str, str]:
        header = self._machine.grammar.format.header
        text = self._machine.grammar.symbols.text("".join(self._pieces))
        return header.read(text) if header else ("content", "")
