"""Tokenizers in the format of Hugging Face's `tokenizer.json`.

Invariant: ids are those of the library `tokenizers`, as long as no content holds a special
token's text. Special tokens are found here, and the library sees ordinary text only: it would
find them in content too, whatever its switches say.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from tokenizers import Tokenizer as Model

from ..errors import ConfigError
from .added_tokens import AddedToken, AddedTokens, added_token
from .prefix_space import for_later_pieces, for_parts_of_words
from .token_bytes import spelling
from .tokenizer import Span

_UNKNOWN = "\ufffd".encode()
_SURROGATE = re.compile("[\ud800-\udfff]")


class HubTokenizer:
    """A tokenizer from the content of a `tokenizer.json`.

    Args:
      definition: the file's content.
      more_tokens: added tokens that other files name; one whose text the definition has too
        changes nothing.

    Raises:
      ConfigError: for a vocabulary whose tokens don't stand for bytes, or a definition that the
        library can't read.
    """

    def __init__(
        self, definition: Mapping[str, Any], more_tokens: Sequence[AddedToken] = ()
    ) -> None:
        known = {token.text: token for token in more_tokens}
        own = map(added_token, definition.get("added_tokens") or ())
        known |= {token.text: token for token in own}
        vocabulary = _vocabulary(definition["model"])
        self._texts = {index: text for text, index in vocabulary.items()}
        self._spell = spelling(definition.get("decoder"))
        needed = _needed_ids(definition["model"])
        self._added_bytes = {
            token.id: token.text.encode() for token in known.values() if token.id not in needed
        }
        self._vocab_size = max([*self._texts, *self._added_bytes]) + 1
        self._specials = {token.text: token.id for token in known.values() if token.is_markup}
        self._added = AddedTokens(list(known.values()))
        self._forbidden = frozenset(self._specials.values()) - needed
        bare = _without_added_tokens(definition)
        self._first = _model(bare)
        self._later = _variant(bare, for_later_pieces(bare), self._first)
        self._inside = _variant(bare, for_parts_of_words(bare), self._first)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a `tokenizer.json`."""
        return cls(json.loads(Path(path).read_text("utf-8")))

    @property
    def vocab_size(self) -> int:
        """All ids are below this."""
        return self._vocab_size

    @property
    def specials(self) -> Mapping[str, int]:
        """All added tokens that aren't white space, with their ids."""
        return MappingProxyType(self._specials)

    def special_id(self, text: str) -> int:
        """Return the id of a special token; ConfigError where there is none."""
        if text not in self._specials:
            raise ConfigError(
                f"the tokenizer has no special token {text!r}; it has "
                f"{', '.join(sorted(self._specials)) or 'none at all'}"
            )
        return self._specials[text]

    def encode(self, text: str) -> list[int]:
        """Return the ids of content, without any special one."""
        return self.encode_markup(text, [(0, len(text))])

    def encode_markup(self, text: str, plain: Sequence[Span] = ()) -> list[int]:
        """Return the ids of a template's text, in which special tokens stand by their text."""
        text = without_surrogates(text)
        ids: list[int] = []
        for piece in self._added.split(text, plain):
            if piece.id is not None:
                ids.append(piece.id)
            else:
                model = self._first if piece.start == 0 else self._later
                ids.extend(self._ordinary(model, text[piece.start : piece.end]))
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, specials by name, invalid bytes as U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """Return the bytes that a token stands for; those of U+FFFD for an unknown id."""
        if index in self._added_bytes:
            return self._added_bytes[index]
        return self._spell(self._texts[index]) if index in self._texts else _UNKNOWN

    def _ordinary(self, model: Model, text: str) -> list[int]:
        encoding = model.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._forbidden.isdisjoint(ids):
            return ids
        # Some vocabularies hold their special tokens as ordinary pieces too. A text that
        # gives one is cut after the first character of each: then nothing gives one as a whole.
        cuts = {
            start + 1
            for index, (start, end) in zip(ids, encoding.offsets, strict=True)
            if index in self._forbidden and start + 1 < end
        }
        if not cuts:
            return [index for index in ids if index not in self._forbidden]
        bounds = [0, *sorted(cuts), len(text)]
        parts = [text[start:end] for start, end in pairwise(bounds)]
        first, *rest = [
            self._ordinary(self._inside if place else model, part)
            for place, part in enumerate(parts)
        ]
        return first + [index for ids in rest for index in ids]


def without_surrogates(text: str) -> str:
    """Replace what no UTF-8 spells: each lone surrogate by U+FFFD.

    Characters keep their places, so that spans stay right.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _variant(bare: Mapping[str, Any], changed: Mapping[str, Any], first: Model) -> Model:
    # Keys that were left out and stand for nothing now make no difference.
    same = all(changed[key] == bare.get(key) for key in changed)
    return first if same else _model(changed)


def _model(definition: Mapping[str, Any]) -> Model:
    try:
        return Model.from_str(json.dumps(definition))
    except Exception as error:  # the library has no narrower one
        raise ConfigError(
            f"the library tokenizers can't read this tokenizer.json: {error}; install a newer "
            "version of it, or get the file again"
        ) from error


def _without_added_tokens(definition: Mapping[str, Any]) -> dict[str, Any]:
    switched_off = {"post_processor": None, "truncation": None, "padding": None}
    return {**definition, **switched_off, "added_tokens": []}


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    table = model["vocab"]
    if isinstance(table, Mapping):
        return dict(table)
    return {text: index for index, (text, _) in enumerate(table)}


def _needed_ids(model: Mapping[str, Any]) -> set[int]:
    """Return the ids that stand for what no piece spells, also if they are added tokens.

    Content may give them: the unknown one, and those of single bytes.
    """
    if "unk_id" in model:
        return {model["unk_id"]} - {None}
    vocabulary = model["vocab"]
    names = [f"<0x{byte:02X}>" for byte in range(256)] if model.get("byte_fallback") else []
    return {vocabulary[name] for name in (*names, model.get("unk_token")) if name in vocabulary}
