"""A policy from one GGUF file: weights, configuration and text; saved, it is a folder."""

import json
from pathlib import Path

import numpy as np
import pytest

from headrace import ConfigError, TextFiles, load_policy, save_policy
from headrace.pipeline.models.families import family_of
from headrace.pipeline.models.weights.convert import tensors_from_params
from tests.fakes.gguf import write_gguf
from tests.fakes.weights import assert_same
from tests.policy.families import VOCAB
from tests.policy.test_policy import TEMPLATE, policy_of

HUB = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 6,
    "intermediate_size": 12,
    "tie_word_embeddings": True,
}
TOKENS = ["<s>", "<|im_end|>", "a", "b", "ab", "Ġ", *(f"<unused{n}>" for n in range(VOCAB - 6))]
FIELDS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 12,
    "llama.context_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.key_length": 6,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1, *[5] * (VOCAB - 6)],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": TEMPLATE,
}


def test_law_15_a_gguf_file_is_loaded_and_saved_as_a_folder(tmp_path: Path) -> None:
    policy = policy_of(HUB)
    tensors = tensors_from_params(policy.params, family_of(HUB).entries(policy.config))
    loaded = load_policy(write_gguf(tmp_path / "model.gguf", FIELDS, tensors))
    save_policy(loaded, tmp_path / "folder")
    again = load_policy(tmp_path / "folder")
    for one in (loaded, again):
        assert (one.config, one.vocab_size) == (policy.config, VOCAB)
        assert_same(one.params, policy.params)
        text = one.text
        assert isinstance(text, TextFiles)
        assert text.chat_template == TEMPLATE
        assert text.special_texts == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
        assert text.stop_ids == (1,)
        assert text.tokenizer.encode("ab b<|im_end|>")[:3] == [4, 5, 3]
        assert text.tokenizer.encode_markup("a<|im_end|>") == [2, 1]
    assert again.settings["architectures"] == ["LlamaForCausalLM"]
    assert again.settings["eos_token_id"] == 1


def test_the_saved_tokenizer_has_the_same_ids_in_its_library(tmp_path: Path) -> None:
    library = pytest.importorskip("tokenizers")
    policy = policy_of(HUB)
    tensors = tensors_from_params(policy.params, family_of(HUB).entries(policy.config))
    loaded = load_policy(write_gguf(tmp_path / "model.gguf", FIELDS, tensors))
    save_policy(loaded, tmp_path / "folder")
    tokenizer = library.Tokenizer.from_file(str(tmp_path / "folder" / "tokenizer.json"))
    assert tokenizer.encode("ab<|im_end|>b<s>").ids == [4, 1, 3, 0]
    config = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"


def test_a_file_that_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(np.arange(9).tobytes())
    with pytest.raises(ConfigError, match="not a whole GGUF file"):
        load_policy(path)
