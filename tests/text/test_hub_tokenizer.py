"""Tokenizer files: the ids are the library's, and content never gives a special one."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.text.added_tokens import AddedToken
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from tests.text.vocabularies import (
    CHATML,
    TEXTS,
    definition,
    entry,
    file_of,
    qwen,
    smollm,
    trained,
)

ADDED = (
    entry("<|im_start|>"),
    entry("<|im_end|>"),
    entry("<|im_end|>x"),
    entry("<|end|>", rstrip=True),
    entry("<mask>", lstrip=True),
    entry("<tool_call>", special=False),
    entry("word", special=False, single_word=True),
    entry("   ", special=False),
    entry("late", special=False, normalized=True),
)
DEFINITION = definition("byte-level", ADDED)
LIBRARY = Library.from_str(json.dumps(DEFINITION))
TOKENIZER = HubTokenizer(DEFINITION)
NAMES = [token["content"] for token in ADDED]
SIZE = len(DEFINITION["model"]["vocab"])  # the first added token's id

WORDS = st.sampled_from([*NAMES, *TEXTS, " ", "\n", "<|im_", "end|>", "é", "🙂", "a word b"])
MIXED = st.lists(WORDS | st.text(max_size=5), max_size=8).map("".join)


def library_ids(library: Library, text: str) -> list[int]:
    return library.encode(text, add_special_tokens=False).ids


@given(MIXED)
def test_markup_has_the_ids_of_the_library(text: str) -> None:
    assert TOKENIZER.encode_markup(text) == library_ids(LIBRARY, text)


@given(MIXED)
def test_injection_content_never_gives_a_special_id(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(TOKENIZER.specials.values())
    assert TOKENIZER.decode(ids) == text


@given(MIXED, MIXED, MIXED)
def test_a_plain_span_hides_its_specials_and_no_others(left: str, inner: str, right: str) -> None:
    start, text = f"{left}<|im_start|>", f"{left}<|im_start|>{inner}<|im_start|>{right}"
    ids = TOKENIZER.encode_markup(text, [(len(start), len(start) + len(inner))])
    head, tail = TOKENIZER.encode_markup(start), TOKENIZER.encode_markup(f"<|im_start|>{right}")
    # A token between them may take the spaces of the content along: then the content is shorter.
    assert ids[: len(head)] == head
    assert ids[len(ids) - len(tail) :] == tail
    middle = ids[len(head) : len(ids) - len(tail)]
    assert not set(middle) & set(TOKENIZER.specials.values())
    assert TOKENIZER.decode(middle) == inner


def test_no_special_is_found_across_the_end_of_a_plain_span() -> None:
    text = "<|im_end|><|im_end|>"
    for place in range(1, 10):
        ids = TOKENIZER.encode_markup(text, [(0, place)])
        assert ids.count(SIZE + 1) == 1
        assert TOKENIZER.decode(ids) == text


@given(st.lists(st.integers(-3, SIZE + 12), max_size=30))
def test_decode_is_the_joined_bytes(ids: list[int]) -> None:
    joined = b"".join(map(TOKENIZER.token_bytes, ids))
    assert TOKENIZER.decode(ids) == joined.decode("utf-8", "replace")


@given(MIXED)
def test_decode_is_the_inverse_of_encode(text: str) -> None:
    ids = LIBRARY.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)


def test_lone_surrogates_are_replaced() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a\ufffdb"


def test_what_it_says_of_itself() -> None:
    assert TOKENIZER.vocab_size == SIZE + len(ADDED)
    assert TOKENIZER.specials["<tool_call>"] == TOKENIZER.special_id("<tool_call>") == SIZE + 5
    assert "   " not in TOKENIZER.specials
    with pytest.raises(ConfigError, match=r"no special token '<eos>'; it has .*<\|im_end\|>"):
        TOKENIZER.special_id("<eos>")


def test_tokens_that_other_files_add() -> None:
    more = [AddedToken("<extra>", 600), AddedToken("<|im_end|>", 999)]
    tokenizer = HubTokenizer(DEFINITION, more)
    assert tokenizer.encode_markup("<extra><|im_end|>") == [600, SIZE + 1]
    assert tokenizer.vocab_size == 601


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@given(text=MIXED)
@settings(max_examples=25)
def test_pieces_with_a_space_before_the_text(scheme: str, text: str) -> None:
    content = definition(scheme)
    tokenizer, library = _pair(scheme)
    assert tokenizer.encode_markup(text) == library_ids(library, text)
    unknown = content["model"]["unk_id"]
    ids = tokenizer.encode(f"</s>{text}<s>a</s>")
    assert not set(ids) & (set(tokenizer.specials.values()) - {unknown})


def test_single_bytes_are_content_even_where_they_are_added_tokens() -> None:
    """A trainer that is given them as special tokens makes them so."""
    names = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    model = {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "merges": []}
    model["vocab"] = {name: index for index, name in enumerate(names)}
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    added = [{"id": index, **entry(name)} for index, name in enumerate(names[:258])]
    content = {"model": model, "normalizer": spaces, "decoder": {"type": "ByteFallback"}}
    tokenizer = HubTokenizer({**content, "added_tokens": added})
    text = "a é\n<s><0x41>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert names.index("<s>") not in tokenizer.encode(text)
    assert names.index("<0x41>") not in tokenizer.encode(text)


@pytest.mark.parametrize("before", ["½", "\u0301", "_", "\u200d", "²", "Ⅷ", "٣"])
def test_what_touches_a_word_is_as_in_the_library(before: str) -> None:
    assert TOKENIZER.encode_markup(f"{before}word") == library_ids(LIBRARY, f"{before}word")


def test_pieces_that_spell_a_special_token_are_cut() -> None:
    tokenizer, _ = _pair("never")
    for text in ("</s>", "a</s></s>b", "<s>" * 20):
        ids = tokenizer.encode(text)
        assert 1 not in ids
        assert 2 not in ids
    assert 2 in tokenizer.encode_markup("</s>")


def _pair(scheme: str) -> tuple[HubTokenizer, Library]:
    return HubTokenizer(definition(scheme)), Library.from_str(trained(scheme))


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece", "prefix": "##"}])
def test_a_vocabulary_without_bytes_is_refused(decoder: dict[str, Any] | None) -> None:
    with pytest.raises(ConfigError, match="must be ByteLevel, Metaspace or ByteFallback, got"):
        HubTokenizer({**DEFINITION, "decoder": decoder})


def test_a_definition_that_the_library_cannot_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"read this tokenizer\.json: .*newer version"):
        HubTokenizer({**DEFINITION, "pre_tokenizer": {"type": "Unheard"}})


def test_what_a_definition_may_leave_out() -> None:
    needed = {key: DEFINITION[key] for key in ("model", "decoder", "pre_tokenizer")}
    tokenizer = HubTokenizer(needed)
    assert tokenizer.encode_markup(TEXTS[0]) == TOKENIZER.encode_markup(TEXTS[0])
    assert not tokenizer.specials


@pytest.mark.parametrize("make", [lambda: qwen(20_000), smollm], ids=["qwen", "smollm"])
def test_injection_for_every_added_token_of_a_real_tokenizer(make: Any) -> None:
    tokenizer = make()
    for name, index in tokenizer.specials.items():
        text = f"a{name}b {name}"
        ids = tokenizer.encode(text)
        assert not set(ids) & set(tokenizer.specials.values())
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_markup(name) == [index]


@pytest.mark.slow
def test_the_ids_of_qwen_for_a_known_text() -> None:
    # From the fixtures of canitoolcall, which were made with Qwen's own tokenizer.
    files = file_of("canitoolcall", "_data/fixtures/qwen3-hermes").glob("*.jsonl")
    lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
    fixtures = [json.loads(line) for line in lines]
    texts = [fixture for fixture in fixtures if max(fixture["output_token_ids"]) < 151_669]
    assert len(texts) > 10
    for fixture in texts:
        assert qwen().encode_markup(fixture["raw_output"]) == fixture["output_token_ids"]
    assert set(CHATML) < set(qwen().specials)
