"""A format under one tokenizer: its markers as symbols, and what to search for in each state.

Invariant: a scanner never decides on a marker before as many symbols are there as the longest of
its markers has. So what it finds doesn't depend on how the turn was cut into pieces.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from .format import Format, Header, Mode, Span
from .symbols import Symbols, TokenTable


class Scanner:
    """Finds the first of some markers; where several begin, the longest.

    Example:
      >>> scanner = Scanner(["<a>", "<abc>"])
      >>> scanner.find("x<a>", 0, final=False)
      (0, '')
      >>> scanner.find("x<a>..", 0, final=False)
      (1, '<a>')
    """

    def __init__(self, markers: Iterable[str]) -> None:
        longest_first = sorted(set(markers), key=len, reverse=True)
        self._longest = len(longest_first[0]) if longest_first else 0
        pattern = "|".join(map(re.escape, longest_first))
        self._pattern = re.compile(pattern) if longest_first else None

    def find(self, text: str, start: int, *, final: bool) -> tuple[int, str]:
        """Return where the text without markers surely ends, and the marker there, or ""."""
        if self._pattern is None:
            return len(text), ""
        decided = len(text) if final else max(start, len(text) - self._longest + 1)
        found = self._pattern.search(text, start)
        if found is not None and found.start() < decided:
            return found.start(), found.group()
        return decided, ""


class Grammar:
    """A format whose markers are symbols, with the scanner of each state.

    Attributes:
      format: its markers are symbols; `stops` are texts.
      message_span: the markers around a call that is a message with a header.
      openers: what begins a call, a section of calls or a message.
      interrupters: what can't stand outside of quotes in a call, and so ends it.
    """

    def __init__(self, chosen: Format, tokenizer: TokenTable) -> None:
        self.symbols = Symbols(tokenizer.specials, chosen.markers())
        self.format = _translate(chosen, self.symbols)
        header, section = self.format.header, self.format.section or ()
        starts, ends = ((header.start,), header.ends) if header else ((), ())
        opens = [span.open for span in self.format.calls]
        self.message_span = Span(open="", closes=ends, at_end=True)
        self.openers = (*opens, *section[:1], *starts)
        unkept = (span.open for span in self.format.calls if not span.kept)
        self.interrupters = (*unkept, *section, *starts)
        thoughts = [markers[0] for markers in self.format.reasoning]
        self.content = Scanner([*self.openers, *section, *ends, *thoughts, *self.format.dropped])
        self.section = Scanner([*opens, *section])
        self.header = Scanner([header.message, *starts, *ends] if header else [])
        self._reasoning = self._reasoning_scanners()
        self._calls, self._literal = self._call_scanners()

    def reasoning(self, closes: tuple[str, ...]) -> Scanner:
        """Return what to search for in reasoning that one of some markers ends."""
        return self._reasoning[closes]

    def call(self, span: Span, mode: str, *, literal: bool) -> Scanner:
        """Return what to search for inside a call."""
        return self._literal[span] if literal else self._calls[span, mode]

    def _reasoning_scanners(self) -> dict[tuple[str, ...], Scanner]:
        closes = {markers[1:] for markers in self.format.reasoning}
        if self.format.header:
            closes.add(self.format.header.ends[:1])
        return {each: Scanner([*each, *self.openers]) for each in closes}

    def _call_scanners(self) -> tuple[dict[tuple[Span, str], Scanner], dict[Span, Scanner]]:
        calls, literal = {}, {}
        for span in (*self.format.calls, self.message_span):
            ends = [*span.closes, *self.interrupters]
            literal[span] = Scanner(ends)
            for name, mode in self.format.modes.items():
                edges = [edge.marker for edge in mode.edges]
                calls[span, name] = Scanner([*edges, *ends])
        return calls, literal


def _translate(chosen: Format, symbols: Symbols) -> Format:
    encode = symbols.encode
    reasoning = [tuple(map(encode, markers)) for markers in chosen.reasoning]
    tokens = [
        found for found, text in zip(reasoning, chosen.reasoning, strict=True) if found != text
    ]
    section = chosen.section
    return replace(
        chosen,
        calls=tuple(_translate_span(span, symbols) for span in chosen.calls),
        modes={name: _translate_mode(mode, symbols) for name, mode in chosen.modes.items()},
        section=section and (encode(section[0]), encode(section[1])),
        reasoning=tuple(tokens or reasoning),
        dropped=tuple(map(encode, chosen.dropped)),
        header=chosen.header and _translate_header(chosen.header, symbols),
    )


def _translate_span(span: Span, symbols: Symbols) -> Span:
    closes = tuple(map(symbols.encode, span.closes))
    return replace(span, open=symbols.encode(span.open), closes=closes)


def _translate_mode(mode: Mode, symbols: Symbols) -> Mode:
    edges = (replace(edge, marker=symbols.encode(edge.marker)) for edge in mode.edges)
    return replace(mode, edges=tuple(edges))


def _translate_header(header: Header, symbols: Symbols) -> Header:
    start, message = symbols.encode(header.start), symbols.encode(header.message)
    ends = tuple(map(symbols.encode, header.ends))
    return replace(header, start=start, message=message, ends=ends)
