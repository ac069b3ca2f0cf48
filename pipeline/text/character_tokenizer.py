"""A character tokenizer: one id per character, per atomic word and per special token.

Invariant: no text can produce a special id. `<end>` written by a tool is five ordinary
characters; only the renderer, and the policy by sampling, put special ids into a sequence.
"""

import re
from collections.abc import Callable, Iterable

from ..errors import ConfigError

PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"
SPECIALS = (PAD, END, UNKNOWN, "<system>", "<user>", "<assistant>", "<tool>")


class CharacterTokenizer:
    """Map text to ids and back. Ids: the special tokens, then the words, then the characters.

    Words are matched from left to right, the longest first. Their letters need not be
    characters of the alphabet themselves.

    Args:
      characters: the alphabet, each character once.
      words: texts of two or more characters that are one token each.

    Raises:
      ConfigError: for an empty alphabet, or a piece that is repeated, too short or special.

    Example:
      >>> tokenizer = CharacterTokenizer("0123456789+()", ("add",))
      >>> ids = tokenizer.encode("add(1+2)")
      >>> len(ids), tokenizer.decode(ids)
      (6, 'add(1+2)')
    """

    def __init__(self, characters: str, words: tuple[str, ...] = ()) -> None:
        _check_alphabet(characters, words)
        pieces = (*words, *characters)
        self._ids = {piece: index for index, piece in enumerate(pieces, start=len(SPECIALS))}
        self._texts = dict(enumerate((*SPECIALS, *pieces)))
        self._split = _splitter(words)
        self._unknown = SPECIALS.index(UNKNOWN)

    @property
    def vocab_size(self) -> int:
        """How many ids there are; the ids are 0 to vocab_size - 1."""
        return len(self._texts)

    @staticmethod
    def special_id(name: str) -> int:
        """Return the id of a special token, such as `<end>`."""
        return SPECIALS.index(name)

    def encode(self, text: str, *, words: bool = True) -> list[int]:
        """Return the ids of a text; `words=False` takes every character by itself.

        Raises:
          ConfigError: for a character that is not in the alphabet.
        """
        table = self._ids
        try:
            return [table[piece] for piece in (self._split(text) if words else text)]
        except KeyError as error:
            raise ConfigError(_unknown_character(error.args[0])) from None

    def encode_lossy(self, text: str, *, words: bool = True) -> list[int]:
        """Return the ids of a text; a character outside the alphabet becomes `<unknown>`."""
        table, unknown = self._ids, self._unknown
        return [table.get(piece, unknown) for piece in (self._split(text) if words else text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids, special tokens by name. Never raises for a wrong id."""
        texts = self._texts
        return "".join([texts.get(index, UNKNOWN) for index in ids])


def _splitter(words: tuple[str, ...]) -> Callable[[str], Iterable[str]]:
    if not words:
        return iter
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("|".join((*map(re.escape, longest_first), ".")), re.DOTALL).findall


def _check_alphabet(characters: str, words: tuple[str, ...]) -> None:
    if not characters:
        raise ConfigError("text.characters must have at least one character, got ''")
    for pieces, name in ((characters, "characters"), (words, "words")):
        if repeated := sorted({piece for piece in pieces if pieces.count(piece) > 1}):
            raise ConfigError(f"text.{name} must not repeat anything, got {repeated} twice")
    for word in words:
        if len(word) < 2:
            raise ConfigError(
                f"text.words must have two or more characters each, got {word!r}; "
                "put single characters into text.characters"
            )
        if word in SPECIALS:
            raise ConfigError(f"text.words must not name a special token, got {word!r}")


def _unknown_character(character: str) -> str:
    return (
        f"the character {character!r} (U+{ord(character):04X}) is not in the alphabet; "
        "add it to text.characters, or keep it out of the tasks and demonstrations"
    )
