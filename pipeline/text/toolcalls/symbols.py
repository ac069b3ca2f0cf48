"""Token ids as symbols: text in which a special token is one character that no text can hold.

Invariant: a special token of the format becomes a lone surrogate, which decoding UTF-8 never
gives. So whatever is searched in symbols finds a marker where the token was sampled, and never
where a user, a tool or the policy spelled its text.
"""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

_FIRST = 0xD800
_SHORTEST = 3  # a token such as "<" or a newline is no marker by itself


class TokenTable(Protocol):
    """What the parser needs of a tokenizer."""

    @property
    def specials(self) -> Mapping[str, int]:
        """The texts that are one token each in markup, with their ids."""
        ...

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for."""
        ...


class Symbols:
    """The symbols of some markers under one tokenizer.

    Attributes:
      of_special: what each special token gives: its symbol, or its name where it means nothing.

    Example:
      >>> symbols = Symbols({"<a>": 7, "<b>": 8}, ["<a>", "</a>"])
      >>> symbols.encode("<a></a>") == symbols.of_special[7] + "</a>"
      True
      >>> symbols.text(symbols.encode("<a></a>"))
      '<a></a>'
    """

    def __init__(self, specials: Mapping[str, int], markers: Iterable[str]) -> None:
        everything = "\n".join(markers)
        atoms = [text for text in specials if _is_atom(text) and text in everything]
        self._symbols = {text: chr(_FIRST + place) for place, text in enumerate(atoms)}
        self._texts = {ord(symbol): text for text, symbol in self._symbols.items()}
        longest_first = sorted(map(re.escape, atoms), key=len, reverse=True)
        self._atom = re.compile("|".join(longest_first)) if atoms else None
        self.of_special = {
            index: self._symbols.get(text, text) for text, index in specials.items()
        }

    def encode(self, marker: str) -> str:
        """Return a marker as the symbols that its tokens give."""
        if self._atom is None:
            return marker
        return self._atom.sub(self._symbol, marker)

    def encode_pattern(self, pattern: str) -> str:
        """Return a regular expression, in which markers stand by `re.escape`, for symbols."""
        for text, symbol in self._symbols.items():
            pattern = pattern.replace(re.escape(text), symbol)
        return pattern

    def text(self, symbols: str) -> str:
        """Return symbols as text, special tokens by name."""
        return symbols.translate(self._texts)

    def _symbol(self, found: re.Match[str]) -> str:
        return self._symbols[found.group()]


class SymbolReader:
    """Reads ids one by one; a character whose bytes are split among tokens comes with the last."""

    def __init__(self, tokenizer: TokenTable, symbols: Symbols) -> None:
        self._tokenizer = tokenizer
        self._specials = symbols.of_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, index: int) -> str:
        """Return the symbols that one more id gives."""
        if index in self._specials:
            return self.end() + self._specials[index]
        return self._decoder.decode(self._bytes(index))

    def end(self) -> str:
        """Return what the bytes of an unfinished character give: U+FFFD."""
        return self._decoder.decode(b"", final=True)

    def _bytes(self, index: int) -> bytes:
        try:
            return self._tokenizer.token_bytes(index)
        except (LookupError, ValueError, OverflowError):  # an id that the vocabulary lacks
            return "\ufffd".encode()


def _is_atom(text: str) -> bool:
    return len(text) >= _SHORTEST and not text.isspace()
