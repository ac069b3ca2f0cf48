"""Byte-level BPE definitions from parts: how text is split into words before pairs are merged.

Invariant: the definition has the form of a `tokenizer.json`, so that vocabularies of all sources
work alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError

Pair = tuple[str, str]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"


def byte_level_definition(
    vocabulary: Mapping[str, int],
    merges: Sequence[Pair],
    added_tokens: Sequence[Mapping[str, Any]],
    *,
    words: str,
) -> dict[str, Any]:
    """Return the definition of a byte-level BPE tokenizer.

    Args:
      vocabulary: the tokens, spelled as `token_bytes.byte_characters` says, with their ids.
      merges: pairs of tokens that become one, the first ones first.
      added_tokens: entries as in a `tokenizer.json`.
      words: how text is split into words; the name of a pre-tokenizer in GGUF files.

    Raises:
      ConfigError: for an unknown way to split.
    """
    if words not in _SPLITS:
        raise ConfigError(
            f"pre-tokenizer {words!r} is not known; known are {', '.join(sorted(_SPLITS))}: use "
            "the model's tokenizer.json"
        )
    whole_words = words in _WHOLE_WORDS
    return {
        "version": "1.0",
        "added_tokens": list(added_tokens),
        "normalizer": {"type": "NFC"} if words in _COMPOSED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _SPLITS[words]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", **_NO_PREFIX, "use_regex": False},
        "model": {
            "type": "BPE",
            "vocab": dict(vocabulary),
            "merges": [list(pair) for pair in merges],
            "ignore_merges": whole_words,
        },
    }


_NO_PREFIX = {"add_prefix_space": False, "trim_offsets": True}
_BYTES = {"type": "ByteLevel", **_NO_PREFIX, "use_regex": False}
# GPT-2's own way to split is built into the library.
_GPT2_WORDS = {"type": "ByteLevel", **_NO_PREFIX, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


_SPLITS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_GPT2_WORDS],
    "smollm": [_DIGITS, _GPT2_WORDS],
    "qwen2": [_split(QWEN2), _BYTES],
    "llama-bpe": [_split(LLAMA3), _BYTES],
}
_COMPOSED = {"qwen2"}  # text is put into Unicode's composed form first
_WHOLE_WORDS = {"llama-bpe"}  # a word that is a token needs no merges
