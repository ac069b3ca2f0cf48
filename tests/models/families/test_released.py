"""Released checkpoints by their config.json: as many parameters as published; what is refused."""

import json
import math
from dataclasses import replace
from typing import Any

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.families import FAMILIES, family_of
from headrace.pipeline.models.parameters import declare
from headrace.pipeline.models.traits import AttentionTraits, ExpertTraits, RopeTraits, Traits

LLAMA3_ROPE = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def hub(kind: str, sizes: str, **more: Any) -> dict[str, Any]:
    """A config.json; sizes are layers, width, heads, kv heads, ffn width and vocabulary."""
    names = (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size",
    )  # fmt: skip
    return {"model_type": kind, **dict(zip(names, map(int, sizes.split()), strict=True)), **more}


# With the number of parameters that the model cards or the files' indices give.
RELEASED = {
    "SmolLM2-135M": (
        hub("llama", "30 576 9 3 1536 49152", tie_word_embeddings=True, rope_theta=100000),
        134_515_008,
    ),
    "Llama-3.2-1B": (
        hub(
            "llama", "16 2048 32 8 8192 128256", tie_word_embeddings=True, head_dim=64,
            rope_theta=500000.0, rope_scaling=LLAMA3_ROPE,
        ),
        1_235_814_400,
    ),
    "Qwen2.5-0.5B": (
        hub(
            "qwen2", "24 896 14 2 4864 151936", tie_word_embeddings=True, sliding_window=32768,
            use_sliding_window=False, max_window_layers=24, rope_theta=1000000.0,
        ),
        494_032_768,
    ),
    "Qwen3-0.6B": (
        hub("qwen3", "28 1024 16 8 3072 151936", head_dim=128, tie_word_embeddings=True),
        596_049_920,
    ),
    "Qwen3-30B-A3B": (
        hub(
            "qwen3_moe", "48 2048 32 4 6144 151936", head_dim=128, moe_intermediate_size=768,
            num_experts=128, num_experts_per_tok=8, norm_topk_prob=True,
        ),
        30_532_122_624,
    ),
    "Mistral-7B-v0.1": (hub("mistral", "32 4096 32 8 14336 32000"), 7_241_732_096),
    "gemma-2-2b": (hub("gemma2", "26 2304 8 4 9216 256000", head_dim=256), 2_614_341_888),
    "gemma-3-1b": (
        hub("gemma3_text", "26 1152 4 1 6912 262144", sliding_window=512, head_dim=256),
        999_885_952,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_model_has_its_number_of_parameters(name: str) -> None:
    config_json, expected = RELEASED[name]
    config = family_of(config_json).config_from(config_json)
    weights = jax.tree.leaves(declare(config, config_json["vocab_size"]))
    assert sum(math.prod(weight.shape) for weight in weights) == expected


@pytest.mark.parametrize("name", RELEASED)
def test_every_weight_has_a_name_of_its_own(name: str) -> None:
    config_json, _ = RELEASED[name]
    family = family_of(config_json)
    config = family.config_from(config_json)
    entries = family.entries(config)
    assert len({entry.name for entry in entries}) == len(entries)
    declared = declare(config, config_json["vocab_size"])
    outer = {(key,) for key in declared if key != "layers"}
    layers = {("layers", key) for key in declared["layers"]}
    assert sorted(entry.path for entry in entries) == sorted(outer | layers)


@pytest.mark.parametrize("name", RELEASED)
def test_config_json_there_and_back_is_the_same_model(name: str) -> None:
    config_json, _ = RELEASED[name]
    family = family_of(config_json)
    config = family.config_from(config_json)
    written = json.loads(json.dumps(family.config_to(config)))
    assert family_of(written).config_from(written) == config


def test_gemma_3_has_windows_in_five_of_six_layers_with_a_rotation_of_their_own() -> None:
    config_json, _ = RELEASED["gemma-3-1b"]
    config = family_of(config_json).config_from(config_json)
    traits = config.traits
    assert set(range(26)) - set(traits.attention.windowed_layers) == {5, 11, 17, 23}
    assert (config.rope_theta, traits.rope.windowed_theta) == (1_000_000.0, 10_000.0)


def test_gemma_2_has_windows_in_every_other_layer_and_qwens_windows_are_off() -> None:
    config_json, _ = RELEASED["gemma-2-2b"]
    config = family_of(config_json).config_from(config_json)
    assert config.traits.attention.windowed_layers == tuple(range(0, 26, 2))
    config_json, _ = RELEASED["Qwen2.5-0.5B"]
    assert family_of(config_json).config_from(config_json).traits.attention.window is None


def test_newer_and_older_keys_of_the_rotation_are_read_alike() -> None:
    older, _ = RELEASED["Llama-3.2-1B"]
    newer = {key: value for key, value in older.items() if not key.startswith("rope")}
    newer["rope_parameters"] = {"rope_theta": 500000.0, **LLAMA3_ROPE}
    llama = FAMILIES["llama"]
    assert llama.config_from(newer) == llama.config_from(older)
    older, _ = RELEASED["gemma-3-1b"]
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 500}
    newer = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 500},
        }
    }
    gemma = FAMILIES["gemma3_text"]
    assert gemma.config_from(older | newer) == gemma.config_from(older | scaled)


def test_where_the_original_context_stands_twice_the_outer_one_counts() -> None:
    """As in Transformers; some files have it outside of the record only."""
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    hub = RELEASED["SmolLM2-135M"][0] | {"rope_scaling": rope}
    outer = FAMILIES["llama"].config_from(hub | {"original_max_position_embeddings": 16})
    assert outer.traits.rope.original_tokens == 16


def test_gemma_3_takes_an_older_record_into_the_newer_one() -> None:
    """As Transformers does, which looks for "truncate" outside of these records, in vain."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    full = {"rope_type": "default", "rope_theta": 5000.0, "truncate": False}
    hub = RELEASED["gemma-3-1b"][0] | {"rope_parameters": {"full_attention": full}}
    config = FAMILIES["gemma3_text"].config_from(hub | {"rope_scaling": yarn})
    assert config.rope_theta == 5000.0
    assert (config.traits.rope.scaling, config.traits.rope.factor) == ("yarn", 4.0)
    assert config.traits.rope.whole_dimensions


def test_a_gemma_3_that_sees_pictures_is_read_as_its_text_part() -> None:
    text, _ = RELEASED["gemma-3-1b"]
    both = {"model_type": "gemma3", "text_config": text, "vision_config": {}}
    family = family_of(both)
    config = family.config_from(both)
    assert config == family_of(text).config_from(text)
    assert family_of(family.config_to(config)) is FAMILIES["gemma3_text"]


REFUSED = {
    "a family": ({"model_type": "mamba"}, "model_type must be one of gemma2, .*got 'mamba'"),
    "no family": ({"model_type": None}, "model_type must be one of"),
    "an architecture": ({"architectures": ["LlamaForTokenClassification"]}, "architectures must"),
    "quantized weights": ({"quantization_config": {"bits": 4}}, "quantization_config must be ab"),
    "an activation": ({"hidden_act": "relu"}, "hidden_act must be one of silu.*got 'relu'"),
    "a rotation": (
        {"rope_scaling": {"rope_type": "longrope"}}, "rope_type must be one of .*got 'longrope'",
    ),
    "half a rotation": ({"rope_scaling": {"type": "linear"}}, "factor must be a number"),
    "a part of a head": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
    "a rotation for each kind of layer": (
        {"rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
        "rope_parameters must be one record for all layers",
    ),
    "one rotation for Gemma 3": (
        {"model_type": "gemma3_text", "architectures": None, "rope_parameters": {"factor": 2.0}},
        "rope_parameters must be records for 'full_attention' and 'sliding_attention'",
    ),
    "a width that is text": ({"hidden_size": "576"}, "hidden_size must be an integer >= 1"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads must be an integer >= 1"),
    "a window of nothing": (
        {"model_type": "mistral", "sliding_window": 0}, "sliding_window must be an integer >= 1",
    ),
    "mixed layers of experts": (
        {"model_type": "qwen3_moe", "num_experts": 8, "use_sliding_window": True,
         "layer_types": ["full_attention"] * 30},
        "layer_types must be alike",
    ),
    "no width": ({"hidden_size": None}, "hidden_size must be given"),
    "kinds of layers": (
        {"model_type": "qwen2", "layer_types": ["chunked_attention"] * 30}, "layer_types must be",
    ),
    "windows of no width": (
        {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 30},
        "sliding_window must be given",
    ),
    "mixed Mistral layers": (
        {"model_type": "mistral", "layer_types": ["full_attention"] * 30}, "layer_types must be",
    ),
    "both ways": (
        {"model_type": "gemma2", "use_bidirectional_attention": True},
        "use_bidirectional_attention must be false",
    ),
    "a dense layer among experts": (
        {"model_type": "qwen3_moe", "num_experts": 4, "mlp_only_layers": [1]},
        "mlp_only_layers must be empty",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_in_words(name: str) -> None:
    change, message = REFUSED[name]
    config_json = RELEASED["SmolLM2-135M"][0] | change
    with pytest.raises(ConfigError, match=message):
        family_of(config_json).config_from(config_json)


ROPES = [
    RopeTraits(),
    RopeTraits("linear", 3.0),
    RopeTraits("llama3", 8.0, 1.0, 4.0, 64),
    RopeTraits("yarn", 4.0, 2.0, 16.0, 64, amplitude=1.1, whole_dimensions=False),
]


@st.composite
def models(draw: st.DrawFn, kind: str) -> ModelConfig:
    """A model that the family can say, with every number drawn."""
    layers, kv_heads = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    windowed = draw(st.sets(st.integers(0, layers - 1)))
    if kind in ("mistral", "qwen3_moe"):
        windowed = set(range(layers)) if windowed else set()
    if kind == "llama":
        windowed = set()
    bias = draw(st.booleans()) and kind != "mistral"
    gemma = kind.startswith("gemma")
    rope = draw(st.sampled_from(ROPES))
    if kind == "gemma3_text":
        rope = replace(rope, windowed_theta=draw(st.sampled_from([10.0, 5000.0])))
    caps = st.none() | st.sampled_from([2.0, 30.0])
    experts = ExpertTraits(5, draw(st.integers(1, 5)), normalize=draw(st.booleans()))
    attention = AttentionTraits(
        qkv_bias=bias or kind == "qwen2",
        output_bias=bias and kind != "qwen2",
        score_width=draw(st.sampled_from([16.0, 24.5])) if gemma else None,
        score_cap=draw(caps) if kind == "gemma2" else None,
        window=draw(st.integers(1, 9)) if windowed else None,
        windowed_layers=tuple(sorted(windowed)),
    )
    width = draw(st.integers(1, 9)) * 4
    return ModelConfig(
        num_layers=layers,
        width=width,
        num_heads=kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=kv_heads,
        head_width=2 * draw(st.integers(1, 4)),
        ffn_width=draw(st.integers(1, 9)),
        rope_theta=draw(st.sampled_from([10.0, 1e6])),
        norm_eps=draw(st.sampled_from([1e-6, 1e-5])),
        qk_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        tied_embeddings=draw(st.booleans()),
        traits=Traits(
            attention=attention,
            rope=rope,
            experts=experts if kind == "qwen3_moe" else ExpertTraits(),
            ffn_bias=draw(st.booleans()) and kind == "llama",
            activation=draw(st.sampled_from(["silu", "gelu_tanh", "gelu"])),
            norms_add_one=gemma,
            post_norms=gemma,
            embedding_scale=width**0.5 if gemma else 1.0,
            logit_cap=draw(caps) if gemma else None,
        ),
    )


@pytest.mark.parametrize("kind", sorted(FAMILIES.keys() - {"gemma3"}))
@settings(max_examples=40)
@given(data=st.data())
def test_law_15_any_model_that_a_family_can_say_comes_back_from_its_config_json(
    kind: str, data: st.DataObject
) -> None:
    config = data.draw(models(kind))
    written = json.loads(json.dumps(FAMILIES[kind].config_to(config)))
    assert FAMILIES[kind].config_from(written) == config
