"""Sentencepiece vocabularies of the BPE kind, from their pieces and scores.

Invariant: of all neighbours whose join is a piece, the join of the highest score is made first,
as sentencepiece does.

Reference: Kudo and Richardson 2018, SentencePiece.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[str, str]


def sentencepiece_definition(
    pieces: Sequence[str],
    scores: Sequence[float],
    added_tokens: Sequence[Mapping[str, Any]],
    *,
    unknown: int,
    space_first: bool,
) -> dict[str, Any]:
    """Return the definition of a tokenizer in the form of a `tokenizer.json`.

    Args:
      pieces: texts, in which `▁` is a space and `<0x41>` a byte; the places are the ids.
      scores: one each, the higher the sooner joined.
      added_tokens: entries as in a `tokenizer.json`; their texts are never joined from parts.
      unknown: the id for what no piece spells.
      space_first: a text, and what follows a special token, starts as if after a space.
    """
    names = {entry["content"] for entry in added_tokens}
    ordinary = {text: scores[index] for index, text in enumerate(pieces) if text not in names}
    spaces: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    ]
    prepend: list[dict[str, Any]] = [{"type": "Prepend", "prepend": "▁"}] if space_first else []
    return {
        "version": "1.0",
        "added_tokens": list(added_tokens),
        "normalizer": {"type": "Sequence", "normalizers": prepend + spaces},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "unk_token": pieces[unknown],
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {text: index for index, text in enumerate(pieces)},
            "merges": [list(pair) for pair in _merges(ordinary)],
        },
    }


def _merges(scores: Mapping[str, float]) -> list[Pair]:
    merges: list[tuple[float, Pair]] = []
    for piece, score in scores.items():
        for place in range(1, len(piece)):
            left, right = piece[:place], piece[place:]
            if left in scores and right in scores:
                merges.append((-score, (left, right)))
    merges.sort(key=_score)
    return [pair for _, pair in merges]


def _score(merge: tuple[float, Pair]) -> float:
    return merge[0]
