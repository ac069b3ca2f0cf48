"""The tokenizer inside a GGUF file.

Invariant: ids are those of the tokenizer that the file was made from, as far as its kind is
known; an unknown kind is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError
from .byte_level import byte_level_definition
from .hub_tokenizer import HubTokenizer
from .sentencepiece import sentencepiece_definition

_CONTROL, _USER_DEFINED = 3, 4


def gguf_tokenizer(fields: Mapping[str, Any]) -> HubTokenizer:
    """Make the tokenizer that a GGUF file's key-value pairs describe.

    Args:
      fields: as `gguf_header.read_gguf_header` returns them.

    Raises:
      ConfigError: where there is none, or of a kind that isn't known.
    """
    return HubTokenizer(gguf_definition(fields))


def gguf_definition(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokenizer of a GGUF file in the form of a `tokenizer.json`."""
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(fields)
    if kind == "llama":
        return _sentencepiece(fields)
    raise ConfigError(
        f"tokenizer.ggml.model of a GGUF file must be gpt2 or llama, got {kind!r}; use the "
        "model's tokenizer.json"
    )


def _byte_level(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens: Sequence[str] = fields["tokenizer.ggml.tokens"]
    added = _added_tokens(fields)
    names = {entry["content"] for entry in added}
    return byte_level_definition(
        {text: index for index, text in enumerate(tokens) if text not in names},
        [_pair(merge) for merge in fields["tokenizer.ggml.merges"]],
        added,
        words=fields.get("tokenizer.ggml.pre", "default"),
    )


def _sentencepiece(fields: Mapping[str, Any]) -> dict[str, Any]:
    return sentencepiece_definition(
        fields["tokenizer.ggml.tokens"],
        fields["tokenizer.ggml.scores"],
        _added_tokens(fields),
        unknown=fields.get("tokenizer.ggml.unknown_token_id", 0),
        space_first=fields.get("tokenizer.ggml.add_space_prefix", True),
    )


def _added_tokens(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    kinds = fields["tokenizer.ggml.token_type"]
    return [
        {"content": text, "id": index, "special": kind == _CONTROL}
        for index, (text, kind) in enumerate(
            zip(fields["tokenizer.ggml.tokens"], kinds, strict=True)
        )
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _pair(merge: str) -> tuple[str, str]:
    # A space in a token is spelled otherwise, so the one that parts them is the only one.
    left, right = merge.split(" ")
    return left, right
