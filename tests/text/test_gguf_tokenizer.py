"""GGUF files: what they say of themselves, and the tokenizers inside."""

import random
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.gguf_header import read_gguf_header
from headrace.pipeline.text.gguf_tokenizer import gguf_tokenizer
from headrace.pipeline.text.ranks import merges_of, ranks_tokenizer
from tests.text.vocabularies import TEXTS, qwen, smollm, smollm_fields

PIECES = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abc",
          "ab", "▁a", "bc", "abc", "▁ab", "cc", "▁▁")  # fmt: skip
SCORES = [*[0.0] * 259, -9.0, -9.1, -9.2, -9.3, -3.0, -1.0, -2.0, -4.0, -6.0, -5.0, -7.0]
KINDS = [2, 3, 3, *[6] * 256, *[1] * 11]
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": list(PIECES),
    "tokenizer.ggml.scores": SCORES,
    "tokenizer.ggml.token_type": KINDS,
}
GGUF_TOKENIZER = gguf_tokenizer(SENTENCEPIECE)


def by_scores(text: str) -> list[int]:
    """Join neighbours by the highest score, as sentencepiece describes it."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        joins = [
            (SCORES[PIECES.index(left + right)], -place)
            for place, (left, right) in enumerate(pairwise(parts))
            if left + right in PIECES
        ]
        if not joins:
            break
        place = -max(joins)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [PIECES.index(part)] if part in PIECES else [3 + byte for byte in part.encode()]
    return ids


@given(st.text("abc é", min_size=1, max_size=20))
def test_sentencepiece_joins_by_score(text: str) -> None:
    ids = GGUF_TOKENIZER.encode(text)
    assert ids == by_scores(text)
    assert GGUF_TOKENIZER.decode(ids) == " " + text


def test_sentencepiece_without_a_first_space() -> None:
    tokenizer = gguf_tokenizer({**SENTENCEPIECE, "tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert tokenizer.encode_markup("<s>a") == [1, PIECES.index("a")]


@given(st.text(max_size=20) | st.sampled_from(TEXTS))
@settings(max_examples=30)
def test_smollm_round_trip(text: str) -> None:
    known = {smollm().token_bytes(index) for index in range(500)}  # some bytes have no token
    kept = b"".join(bytes([byte]) for byte in text.encode() if bytes([byte]) in known)
    assert smollm().decode(smollm().encode(text)) == kept.decode("utf-8", "replace")


def test_smollm_has_single_digits_and_its_specials() -> None:
    assert len(smollm().encode("1234")) == 4
    assert smollm().special_id("<|im_end|>") == 2
    assert smollm().vocab_size == smollm_fields()["llama.vocab_size"]
    # The library's own reading of the same file, noted once.
    assert smollm().encode("The capital of France is Paris.") == [504, 3575, 282, 4649, 314, 7042,
                                                                  30]  # fmt: skip


def by_ranks(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Join neighbours by the lowest rank, as tiktoken does."""
    parts = [word[place : place + 1] for place in range(len(word))]
    while True:
        joins = [
            (ranks[left + right], place)
            for place, (left, right) in enumerate(pairwise(parts))
            if left + right in ranks
        ]
        if not joins:
            return [ranks[part] for part in parts]
        place = min(joins)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def random_ranks(seed: int) -> dict[bytes, int]:
    rng = random.Random(seed)
    tokens = [bytes([byte]) for byte in range(256)]
    while len(tokens) < 290:
        join = rng.choice(tokens[97:100] + tokens[256:]) + rng.choice(tokens[97:100])
        if join not in tokens:
            tokens.append(join)
    return {token: rank for rank, token in enumerate(tokens)}


@given(st.integers(0, 5), st.text("abc", min_size=1, max_size=25))
def test_ranks_and_their_merges_give_the_same_ids(seed: int, word: str) -> None:
    ranks = random_ranks(seed)
    tokenizer = ranks_tokenizer(ranks, {"<|end|>": 290}, words="qwen2")
    assert tokenizer.encode(word) == by_ranks(word.encode(), ranks)
    assert tokenizer.encode_markup("<|end|>") == [290]
    assert len(merges_of(ranks)) >= len(ranks) - 256


def test_the_first_tokens_of_qwen_are_a_vocabulary() -> None:
    for text in TEXTS:
        assert qwen(20_000).decode(qwen(20_000).encode(text)) == text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "must be gpt2 or llama, got None"),
        ({"tokenizer.ggml.model": "rwkv"}, "got 'rwkv'; use the model's tokenizer.json"),
        (
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "new",
                "tokenizer.ggml.tokens": [],
                "tokenizer.ggml.token_type": [],
                "tokenizer.ggml.merges": [],
            },
            "pre-tokenizer 'new' is not known; known are gpt-2, llama-bpe, qwen2, smollm",
        ),
    ],
)
def test_an_unknown_kind_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gguf_tokenizer(fields)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _file(pairs: list[tuple[str, int, bytes]], version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs))
    body = b"".join(_text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs)
    return head + body


WHOLE = _file(
    [
        ("name", 8, _text("Größe")),
        ("layers", 4, struct.pack("<I", 30)),
        ("base", 6, struct.pack("<f", 0.5)),
        ("flag", 7, b"\1"),
        ("big", 10, struct.pack("<Q", 1 << 40)),
        ("texts", 9, struct.pack("<IQ", 8, 2) + _text("a") + _text("")),
        ("numbers", 9, struct.pack("<IQ3h", 3, 3, 1, -2, 3)),
        ("nested", 9, struct.pack("<IQIQi", 9, 1, 5, 1, -7)),
    ]
)


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(WHOLE + b"tensors")
    assert read_gguf_header(path).fields == {
        "name": "Größe",
        "layers": 30,
        "base": 0.5,
        "flag": True,
        "big": 1 << 40,
        "texts": ["a", ""],
        "numbers": [1, -2, 3],
        "nested": [[-7]],
    }


@given(st.integers(0, len(WHOLE) - 1) | st.none(), st.sampled_from([1, 4, 0x3000000]))
@settings(max_examples=40)
def test_a_broken_file_is_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int | None, version: int
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    path.write_bytes(WHOLE[:cut] if cut is not None else _file([], version))
    with pytest.raises(ConfigError, match="not a whole GGUF file of version 2 or 3"):
        read_gguf_header(path)


def test_a_value_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(_file([("x", 99, b"")]))
    with pytest.raises(ConfigError, match="unknown type 99"):
        read_gguf_header(path)
