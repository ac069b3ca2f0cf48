"""Byte-level vocabularies in tiktoken's form: tokens in the order in which they are preferred.

Invariant: the merges that a ranked vocabulary implies give the same ids as its ranks do.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .byte_level import Pair, byte_level_definition
from .hub_tokenizer import HubTokenizer
from .token_bytes import byte_characters

Ranks = Mapping[bytes, int]


def read_ranks(path: str | Path) -> dict[bytes, int]:
    """Read a file that has a token in base64 and its rank on each line."""
    lines = Path(path).read_bytes().splitlines()
    fields = (line.split() for line in lines if line)
    return {base64.b64decode(token): int(rank) for token, rank in fields}


def ranks_tokenizer(ranks: Ranks, specials: Mapping[str, int], *, words: str) -> HubTokenizer:
    """Make a tokenizer from ranks, which are the ids, and special tokens.

    Args:
      words: how text is split into words; see `byte_level_definition`.
    """
    spell = byte_characters()
    vocabulary = {_spelled(token, spell): rank for token, rank in ranks.items()}
    added: list[dict[str, Any]] = [
        {"content": text, "id": index, "special": True} for text, index in specials.items()
    ]
    return HubTokenizer(byte_level_definition(vocabulary, merges_of(ranks), added, words=words))


def merges_of(ranks: Ranks) -> list[Pair]:
    """Return all pairs of tokens whose join is a token, the lowest rank first.

    Example:
      >>> merges_of({b"a": 0, b"b": 1, b"ab": 2, b"aba": 3})
      [('a', 'b'), ('ab', 'a')]
    """
    spell = byte_characters()
    merges: list[tuple[int, int, int, Pair]] = []
    for token, rank in ranks.items():
        for place in range(1, len(token)):
            left, right = token[:place], token[place:]
            if left in ranks and right in ranks:
                pair = (_spelled(left, spell), _spelled(right, spell))
                merges.append((rank, ranks[left], ranks[right], pair))
    merges.sort()
    return [pair for *_, pair in merges]


def _spelled(token: bytes, spell: Mapping[int, str]) -> str:
    return "".join([spell[byte] for byte in token])
