"""The bytes that each token of a vocabulary stands for.

Invariant: a text's ids give back its UTF-8 bytes, token by token; a token may hold a part of a
character. How a vocabulary spells bytes is read from its decoder.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError

Spelling = Callable[[str], bytes]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_characters() -> dict[int, str]:
    """Return the character by which byte-level vocabularies spell each byte.

    Visible bytes stand for themselves, the others for characters from U+0100 on.

    Example:
      >>> byte_characters()[0x41], byte_characters()[0x20]
      ('A', 'Ġ')

    Reference: Radford et al. 2019, Language models are unsupervised multitask learners, 2.2.
    """
    hidden = [byte for byte in range(256) if byte not in _VISIBLE]
    table = {byte: chr(byte) for byte in _VISIBLE}
    return table | {byte: chr(0x100 + index) for index, byte in enumerate(hidden)}


_BYTE_OF = {character: bytes([byte]) for byte, character in byte_characters().items()}


def byte_level(token: str) -> bytes:
    """Return the bytes of a token spelled by one character a byte."""
    table = _BYTE_OF
    return b"".join([table.get(character) or character.encode() for character in token])


def sentencepiece(token: str) -> bytes:
    r"""Return the bytes of a token in which `▁` is a space and `<0x41>` a byte.

    Example:
      >>> sentencepiece("▁the"), sentencepiece("<0xE2>")
      (b' the', b'\xe2')
    """
    if found := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(found[1], 16)])
    return token.replace("▁", " ").encode()


def spelling(decoder: Mapping[str, Any] | None) -> Spelling:
    """Choose by the decoder of a `tokenizer.json`.

    Raises:
      ConfigError: for a decoder after which tokens have no bytes of their own.
    """
    kinds = _kinds(decoder) if decoder is not None else set()
    if "ByteLevel" in kinds:
        return byte_level
    if kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return sentencepiece
    raise ConfigError(
        "the tokenizer's decoder must be ByteLevel, Metaspace or ByteFallback, got "
        f"{' + '.join(sorted(kinds)) or 'none'}; use a tokenizer whose tokens stand for bytes"
    )


def _kinds(decoder: Mapping[str, Any]) -> set[str]:
    if decoder["type"] == "Sequence":
        return {kind for part in decoder["decoders"] for kind in _kinds(part)}
    return {decoder["type"]}
