"""GGUF files: the numbers are those that went in, in the Hub's order and under its names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.gguf_header import read_gguf_header
from headrace.pipeline.models.families import family_of
from headrace.pipeline.models.parameters import declare
from headrace.pipeline.models.traits import RopeTraits
from headrace.pipeline.models.weights.convert import tensors_from_params
from headrace.pipeline.models.weights.gguf_config import gguf_settings
from headrace.pipeline.models.weights.gguf_tensors import GgufTensors
from headrace.pipeline.models.weights.load import load_params
from headrace.pipeline.models.weights.tensors import check_tensors, expected_shapes
from tests.fakes.gguf import write_gguf
from tests.fakes.weights import VOCAB, assert_same, counted

SIZES = {
    "block_count": 2,
    "embedding_length": 8,
    "feed_forward_length": 12,
    "context_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 6,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 50_000.0,
}
MORE: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3moe": {
        "expert_count": 3,
        "expert_used_count": 2,
        "expert_feed_forward_length": 4,
    },
    "gemma2": {
        "attention.sliding_window": 16,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {"attention.sliding_window": 16, "block_count": 7},
}


def fields_of(architecture: str, **more: Any) -> dict[str, Any]:
    sizes = SIZES | MORE[architecture] | more
    named = {f"{architecture}.{name}": value for name, value in sizes.items()}
    return {"general.architecture": architecture, **named}


def write(folder: Path, fields: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """Write a file whose tensors, unless given, have only the right name."""
    tensors = tensors or {"model.embed_tokens.weight": np.zeros((VOCAB, 8), np.float32)}
    return write_gguf(folder / "model.gguf", fields, tensors)


@pytest.mark.parametrize(
    ("architecture", "tied"), [*((name, True) for name in MORE), ("llama", False)]
)
def test_law_15_what_went_in_comes_out(tmp_path: Path, architecture: str, tied: bool) -> None:
    head = {} if tied else {"lm_head.weight": np.zeros((VOCAB, 8), np.float32)}
    embedding = {"model.embed_tokens.weight": np.zeros((VOCAB, 8), np.float32)}
    first = read_gguf_header(write(tmp_path, fields_of(architecture), embedding | head))
    hub = gguf_settings(first)
    family = family_of(hub)
    config = family.config_from(hub)
    assert config.tied_embeddings is tied
    params = counted(config)
    if architecture.startswith("gemma"):  # their norms lose bits where 1 is added
        _round_norms(params)

    path = write(
        tmp_path, fields_of(architecture), tensors_from_params(params, family.entries(config))
    )
    tensors, declared = GgufTensors(path, read_gguf_header(path)), declare(config, VOCAB)
    check_tensors(tensors, expected_shapes(family.entries(config), declared))
    assert_same(load_params(tensors, family.entries(config), declared), params)


def _round_norms(params: dict[str, Any]) -> None:
    layers = params["layers"]
    for tree, name in [
        (params, "final_norm"),
        *((layers, name) for name in layers if "norm" in name),
    ]:
        tree[name] = (tree[name] + np.float32(1)) - np.float32(1)


def test_rows_of_biases_take_turns_too(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.bias"
    bias = np.arange(12, dtype=np.float32)
    path = write(tmp_path, fields_of("llama"), {name: bias})
    (read,) = GgufTensors(path, read_gguf_header(path)).read([name], (slice(0, 12),))
    np.testing.assert_array_equal(read, bias)


KINDS = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


@settings(max_examples=30)
@given(
    kind=st.sampled_from([GGMLQuantizationType[name] for name in KINDS]),
    rows=st.integers(1, 40),
    blocks=st.integers(1, 3),
    data=st.data(),
)
def test_any_part_is_dequantised_as_the_whole_is(
    tmp_path_factory, kind, rows, blocks, data
) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    whole = np.random.default_rng(rows).standard_normal((rows, 32 * blocks)).astype(np.float32)
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, fields_of("qwen2"), {name: whole}, kind=kind)
    part = tuple(
        slice(*sorted(data.draw(st.sets(st.integers(0, size), min_size=2, max_size=2))))
        for size in whole.shape
    )
    (read,) = GgufTensors(path, read_gguf_header(path)).read([name], part)
    np.testing.assert_array_equal(read, dequantize(quantize(whole, kind), kind)[part])


def llama3_factor(wavelength: float, factor: float) -> float:
    """What llama.cpp's conversion writes for one pair of dimensions."""
    if wavelength < 8192 / 4:
        return 1.0
    if wavelength > 8192 / 1:
        return factor
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return 1 / ((1 - smooth) / factor + smooth)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3s_rule_is_read_off_its_table(tmp_path: Path, factor: float) -> None:
    fields = fields_of("llama", **{"attention.key_length": 64, "rope.freq_base": 500_000.0})
    waves = [2 * np.pi * 500_000.0 ** (2 * pair / 64) for pair in range(32)]
    table = np.array([llama3_factor(wave, factor) for wave in waves], np.float32)
    embedding = {"model.embed_tokens.weight": np.zeros((VOCAB, 8), np.float32)}
    path = write(tmp_path, fields, embedding | {"rope_freqs.weight": table})
    header = read_gguf_header(path)
    tensors = GgufTensors(path, header)
    assert list(tensors.shapes) == list(embedding)
    rope = (
        family_of(gguf_settings(header))
        .config_from(gguf_settings(header, tensors.rope_factors()))
        .traits.rope
    )
    assert rope == RopeTraits("llama3", factor, 1.0, 4.0, 8192)
    with pytest.raises(ConfigError, match="isn't Llama 3's"):
        gguf_settings(header, table[::-1])


def test_settings_are_those_of_the_hub(tmp_path: Path) -> None:
    hub = gguf_settings(read_gguf_header(write(tmp_path, fields_of("gemma3"))))
    sliding, full = "sliding_attention", "full_attention"
    assert hub["layer_types"] == [sliding] * 5 + [full, sliding]
    assert hub["rms_norm_eps"] == 1e-5  # and not the float32 beside it
    config = family_of(hub).config_from(hub)
    assert config.traits.attention.score_width == config.head_width == 6
    assert (config.rope_theta, config.traits.rope.windowed_theta) == (50_000.0, 10_000.0)


def test_the_largest_gemma_scales_queries_by_its_width(tmp_path: Path) -> None:
    fields = fields_of("gemma2", block_count=46)
    hub = gguf_settings(read_gguf_header(write(tmp_path, fields)))
    assert hub["query_pre_attn_scalar"] == 8 // 4


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"general.architecture": "mamba"}, "must be one of llama, .* got 'mamba'"),
        ({"general.architecture": "llama"}, r"no field llama\.embedding_length"),
        (fields_of("llama", **{"rope.scaling.type": "yarn"}), "none or linear, got 'yarn'"),
        (
            fields_of("llama", feed_forward_length=[8, 12]),
            r"llama\.feed_forward_length of the GGUF file differs from layer to layer",
        ),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, fields: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        gguf_settings(read_gguf_header(write(tmp_path, fields)))


def test_a_file_without_a_model_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, fields_of("llama"), {"model.norm.weight": np.zeros(8, np.float32)})
    with pytest.raises(ConfigError, match=r"no tensor token_embd\.weight"):
        gguf_settings(read_gguf_header(path))


def test_a_type_that_the_package_does_not_undo_is_refused(tmp_path: Path) -> None:
    name = "model.embed_tokens.weight"
    path = write(tmp_path, fields_of("llama"), {name: np.zeros((2, 4), np.int8)})
    with pytest.raises(ConfigError, match="is of type I8, which can't be read"):
        list(GgufTensors(path, read_gguf_header(path)).read([name], (slice(0, 2), slice(0, 4))))


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, fields_of("llama"))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"ends before the data of token_embd\.weight"):
        GgufTensors(path, read_gguf_header(path))


def test_a_tensor_of_an_unknown_type_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, fields_of("llama"))
    name = b"token_embd.weight"
    content = bytearray(path.read_bytes())
    kind_at = content.index(name) + len(name) + 4 + 2 * 8
    content[kind_at] = 200
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"unknown types: token_embd\.weight"):
        GgufTensors(path, read_gguf_header(path))
