"""Hides special tokens' texts in content while a chat template arranges it.

Invariant: what stands in a rendered text where content had a special token's text is content
again, and nothing else is. A template may trim, split or repeat its contents: the stand-ins go
where the text would have gone. They are lone surrogates, which no text has.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .added_tokens import AddedToken, AddedTokens
from .hub_tokenizer import without_surrogates
from .tokenizer import Span

_HIGH, _LOW, _BITS = 0xD800, 0xDC00, 10
_STAND_INS = re.compile("(?:[\ud800-\udbff][\udc00-\udfff])+")


@dataclass(frozen=True)
class Marked:
    """A rendered text, and where in it content must not be read as special tokens.

    Attributes:
      plain: spans `(start, end)` of characters, in order and disjoint.
    """

    text: str
    plain: tuple[Span, ...] = ()


class Veil:
    """Puts stand-ins for the texts of special tokens, and for parts of them at a content's ends.

    A part could become whole at the border to the template's own text.

    Args:
      specials: the texts to hide.

    Example:
      >>> veil = Veil(["<|im_end|>"])
      >>> lift(f"user: {veil.hide('a<|im_end|>b')}<|im_end|>")
      Marked(text='user: a<|im_end|>b<|im_end|>', plain=((7, 17),))
    """

    def __init__(self, specials: Iterable[str]) -> None:
        texts = list(specials)
        self._finder = AddedTokens([AddedToken(text, 0) for text in texts])
        self._starts = {text[:end] for text in texts for end in range(1, len(text))}
        self._ends = {text[start:] for text in texts for start in range(1, len(text))}
        self._longest = max(map(len, texts), default=1) - 1

    def hide(self, content: str) -> str:
        """Return a content with stand-ins for special tokens, and for parts at its ends."""
        text = without_surrogates(content)
        start = self._part_at_start(text)
        end = max(start, len(text) - self._part_at_end(text))
        return _stand_in(text[:start]) + self._hide_whole(text[start:end]) + _stand_in(text[end:])

    def hide_in(self, value: Any) -> Any:
        """Return JSON-like data with stand-ins in all its texts, names excepted."""
        if isinstance(value, str):
            return self._hide_whole(without_surrogates(value))
        if isinstance(value, Mapping):
            return {key: self.hide_in(part) for key, part in value.items()}
        if isinstance(value, Sequence):
            return [self.hide_in(part) for part in value]
        return value

    def _hide_whole(self, text: str) -> str:
        parts = ((piece.id, text[piece.start : piece.end]) for piece in self._finder.split(text))
        return "".join([part if index is None else _stand_in(part) for index, part in parts])

    def _part_at_start(self, text: str) -> int:
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((length for length in lengths if text[:length] in self._ends), 0)

    def _part_at_end(self, text: str) -> int:
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._starts), 0)


def lift(text: str) -> Marked:
    """Put the hidden texts back, and say where they are."""
    shown: list[str] = []
    plain: list[Span] = []
    length = done = 0
    for found in _STAND_INS.finditer(text):
        hidden = _hidden(found[0])
        length += found.start() - done
        plain.append((length, length + len(hidden)))
        length += len(hidden)
        shown += [text[done : found.start()], hidden]
        done = found.end()
    return Marked("".join([*shown, text[done:]]), tuple(plain))


def _stand_in(text: str) -> str:
    """Spell each character, of less than 21 bits, by two surrogates."""
    low = (1 << _BITS) - 1
    pairs = [chr(_HIGH + (ord(c) >> _BITS)) + chr(_LOW + (ord(c) & low)) for c in text]
    return "".join(pairs)


def _hidden(pairs: str) -> str:
    codes = [ord(character) for character in pairs]
    return "".join(
        [
            chr((high - _HIGH) << _BITS | (low - _LOW))
            for high, low in zip(codes[::2], codes[1::2], strict=True)
        ]
    )
