"""Finds the tokens that stand by their text: special ones, and others added to a vocabulary.

Invariant: a token that is markup is never found in a plain span, nor across its ends. Tokens of
white space alone, which some vocabularies add for indentation, are no markup: they are found
everywhere.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tokenizer import Span

_SPACES = re.compile(r"\s*")
_WORD_CATEGORIES = ("Nd", "Nl", "Pc")  # beside letters and marks: Unicode's \w, not Python's
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True)
class AddedToken:
    """One added token, with the switches of the Hugging Face format.

    Attributes:
      special: left out where a decoded text is cleaned for people.
      lstrip: takes the white space before it along.
      rstrip: takes the white space after it along.
      single_word: counts only where no letter or digit touches it.
      normalized: found in a second pass, in what the others have left. The library looks for it
        in normalized text; that finds others only where a normalizer changes its surroundings.
    """

    text: str
    id: int
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False

    @property
    def is_markup(self) -> bool:
        """Whether content can't hold it."""
        return self.special or not self.text.isspace()


def added_token(entry: Mapping[str, Any]) -> AddedToken:
    """Read an entry of `added_tokens` in a `tokenizer.json`."""
    return AddedToken(
        text=entry["content"],
        id=entry["id"],
        special=entry.get("special", False),
        lstrip=entry.get("lstrip", False),
        rstrip=entry.get("rstrip", False),
        single_word=entry.get("single_word", False),
        normalized=entry.get("normalized", False),
    )


@dataclass(frozen=True)
class Piece:
    """A part of a text: one added token, or ordinary text where `id` is None."""

    start: int
    end: int
    id: int | None = None


class AddedTokens:
    """All added tokens of a vocabulary.

    At each place the longest token counts, and the leftmost place first.

    Example:
      >>> added = AddedTokens([AddedToken("<s>", 0), AddedToken("</s>", 1)])
      >>> [piece.id for piece in added.split("<s>a<s></s>", plain=[(4, 5)])]
      [0, None, 1]
    """

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        first = [token for token in tokens if not token.normalized]
        later = [token for token in tokens if token.normalized]
        self._passes = [_Finder(group) for group in (first, later) if group]

    def split(self, text: str, plain: Sequence[Span] = ()) -> list[Piece]:
        """Cut a text into added tokens and what is between them; joined, the pieces are the text.

        Args:
          plain: spans of content, in order and disjoint.
        """
        pieces = [Piece(0, len(text))] if text else []
        for finder in self._passes:
            pieces = [
                part
                for piece in pieces
                for part in (finder.cut(text, piece, plain) if piece.id is None else [piece])
            ]
        return pieces


class _Finder:
    """Finds tokens of one pass."""

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        self._tokens = {token.text: token for token in tokens}
        lengths: dict[str, set[int]] = {}
        for text in self._tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(each, reverse=True) for first, each in lengths.items()}
        self._candidates = re.compile("[" + "".join(map(re.escape, lengths)) + "]")

    def cut(self, text: str, piece: Piece, plain: Sequence[Span]) -> Iterator[Piece]:
        """Cut a piece of ordinary text."""
        done = piece.start
        for start, token in self._find(text, piece, plain):
            if start < done:  # white space that the token before has taken along
                continue
            begin = done + len(text[done:start].rstrip()) if token.lstrip else start
            if begin > done:
                yield Piece(done, begin)
            done = start + len(token.text)
            if token.rstrip and (spaces := _SPACES.match(text, done, piece.end)):
                done = spaces.end()
            yield Piece(begin, done, token.id)
        if done < piece.end:
            yield Piece(done, piece.end)

    def _find(
        self, text: str, piece: Piece, plain: Sequence[Span]
    ) -> Iterator[tuple[int, AddedToken]]:
        """Yield tokens and where they start, from left to right, none over another."""
        for start, end, is_plain in _regions(piece, plain):
            place = start
            while found := self._candidates.search(text, place, end):
                place = found.start()
                token = self._longest(text, place, end, is_plain=is_plain)
                if token is None:
                    place += 1
                    continue
                if not token.single_word or _stands_alone(text, place, token, piece):
                    yield place, token
                place += len(token.text)

    def _longest(self, text: str, place: int, end: int, *, is_plain: bool) -> AddedToken | None:
        for length in self._lengths[text[place]]:
            if place + length <= end:
                token = self._tokens.get(text[place : place + length])
                if token is not None and not (is_plain and token.is_markup):
                    return token
        return None


def _regions(piece: Piece, plain: Sequence[Span]) -> Iterator[tuple[int, int, bool]]:
    """Cut a piece at the ends of plain spans; say of each part whether it is plain."""
    place = piece.start
    for span in plain:
        start, end = max(span[0], place), min(span[1], piece.end)
        if start >= end:
            continue
        if place < start:
            yield place, start, False
        yield start, end, True
        place = end
    if place < piece.end:
        yield place, piece.end, False


def _stands_alone(text: str, start: int, token: AddedToken, piece: Piece) -> bool:
    end = start + len(token.text)
    before = text[start - 1] if start > piece.start else " "
    after = text[end] if end < piece.end else " "
    return not _is_of_word(before) and not _is_of_word(after)


def _is_of_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LM" or category in _WORD_CATEGORIES or character in _JOINERS
