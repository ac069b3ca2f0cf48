"""Safetensors in and out: exact (law 15), by blocks, and wrong files are refused by name."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import Params, declare, logical_axes
from headrace.pipeline.models.weights.load import COLLECTED_BYTES, load_params, read_block
from headrace.pipeline.models.weights.safetensors_files import SafetensorsFiles
from headrace.pipeline.models.weights.save import save_params
from headrace.pipeline.models.weights.tensors import (
    ArrayTensors,
    check_tensors,
    expected_shapes,
)
from headrace.pipeline.models.weights.tied import check_tied_head
from headrace.sharding.mesh import Topology
from headrace.sharding.partition import tree_shardings
from headrace.sharding.rules import LEARNER_RULES
from tests.fakes.weights import VOCAB, assert_same, counted, entries

CONFIG = ModelConfig(num_layers=3, width=8, num_heads=4, num_kv_heads=2, head_width=2, ffn_width=4)
UP = "model.layers.1.mlp.up_proj.weight"


def save(folder: Path, params: Params, config: ModelConfig = CONFIG, **options: Any) -> None:
    save_params(params, entries(config), folder, **options)


def load(folder: Path, config: ModelConfig = CONFIG, **options: Any) -> Params:
    tensors, declared = SafetensorsFiles(folder), declare(config, VOCAB)
    check_tensors(tensors, expected_shapes(entries(config), declared))
    return load_params(tensors, entries(config), declared, **options)


@settings(max_examples=20)
@given(
    config=st.builds(
        ModelConfig,
        num_layers=st.integers(1, 3),
        width=st.integers(1, 5),
        num_heads=st.just(2),
        num_kv_heads=st.sampled_from([1, 2]),
        head_width=st.sampled_from([2, 4]),
        ffn_width=st.integers(1, 5),
        qk_norm=st.booleans(),
        tied_embeddings=st.booleans(),
    ),
    max_file_bytes=st.sampled_from([1, 200, 10**6]),
)
def test_law_15_save_and_load_is_exact(tmp_path_factory, config, max_file_bytes) -> None:
    folder = tmp_path_factory.mktemp("model")
    params = counted(config)
    save(folder, params, config, max_file_bytes=max_file_bytes)
    assert_same(load(folder, config), params)
    written = [path for path in folder.iterdir() if path.suffix == ".safetensors"]
    assert (folder / "model.safetensors.index.json").exists() == (len(written) > 1)
    for path in written:
        tensors = load_file(path)
        assert len(tensors) == 1 or sum(x.nbytes for x in tensors.values()) <= max_file_bytes


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_law_15_half_precision_files_load_exactly(tmp_path: Path, dtype: type) -> None:
    params = jax.tree.map(lambda x: x.astype(dtype), counted(CONFIG))
    save(tmp_path, params)
    assert load_file(tmp_path / "model.safetensors")[UP].dtype == dtype
    wide = load(tmp_path)
    assert wide["embedding"].dtype == np.float32
    assert_same(wide, jax.tree.map(lambda x: x.astype(np.float32), params))
    assert_same(load(tmp_path, dtype=dtype), params)


def test_law_15_each_device_gets_its_own_part(tmp_path: Path) -> None:
    params = counted(CONFIG)
    save(tmp_path, params, max_file_bytes=500)
    mesh = replace(Topology.local(8), learner_tensor=2).learner_mesh
    shardings = tree_shardings(logical_axes(CONFIG), mesh, LEARNER_RULES)
    loaded = load(tmp_path, shardings=shardings)
    assert_same(loaded, params)
    assert jax.tree.map(lambda x: x.sharding, loaded) == shardings
    query = loaded["layers"]["query"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(3, 2, 2, 2)}


class Counting(ArrayTensors):
    """Counts the numbers that are read."""

    count = 0

    def read(self, names, part):
        for array in super().read(names, part):
            self.count += array.size
            yield array


@pytest.mark.parametrize(
    ("name", "block"),
    [("query", np.s_[0:3, 2:4, 2:4, 0:2]), ("output", np.s_[1:2, 0:2, 0:2, 2:4])],
)
def test_a_block_is_read_without_the_rest(name: str, block: tuple[slice, ...]) -> None:
    params = counted(CONFIG)
    tensors = Counting(
        {
            entry.tensor_name((layer,)): entry.layout.to_file(params["layers"][name][layer])
            for entry in entries(CONFIG)
            if entry.path[-1] == name
            for layer in range(3)
        }
    )
    entry = next(entry for entry in entries(CONFIG) if entry.path[-1] == name)
    weight = params["layers"][name]
    got = read_block(tensors, entry, weight.shape, block, dtype=np.dtype(np.float32))
    np.testing.assert_array_equal(got, weight[block])
    assert tensors.count == weight[block].size


def test_the_host_holds_few_weights_beside_the_arrays(tmp_path: Path) -> None:
    config = ModelConfig(
        num_layers=4, width=512, num_heads=8, num_kv_heads=8, head_width=64, ffn_width=2048
    )
    save(tmp_path, counted(config), config)
    tensors, declared = SafetensorsFiles(tmp_path), declare(config, VOCAB)
    tracemalloc.start()  # it sees NumPy's memory, not that of JAX's arrays
    try:
        params = load_params(tensors, entries(config), declared)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sizes = sorted(leaf.nbytes for leaf in jax.tree.leaves(params))
    # The weight before it may still be there: JAX lets go of what it has copied a bit later.
    assert sizes[-1] <= peak <= 2.9 * sizes[-1] < sum(sizes) - sizes[-1]
    assert sizes[-1] >= COLLECTED_BYTES


def broken(folder: Path, change: Any) -> Path:
    """A folder whose tensors were changed."""
    save(folder, counted(CONFIG))
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_all_names_that_do_not_fit_are_given(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        del tensors["model.norm.weight"], tensors["model.layers.0.mlp.up_proj.weight"]
        tensors[UP] = np.zeros((3, 8), np.float32)
        tensors["model.extra"] = tensors["vision.weight"] = np.zeros(1)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(1)

    with pytest.raises(ConfigError) as caught:
        load(broken(tmp_path, change))
    assert str(caught.value).splitlines()[1:-1] == [
        "  missing: model.layers.0.mlp.up_proj.weight",
        "  missing: model.norm.weight",
        "  unused: model.extra",
        "  unused: vision.weight",
        f"  wrong shape: {UP} is [3, 8], must be [4, 8]",
    ]


def test_a_tensor_in_two_files_is_named(tmp_path: Path) -> None:
    save(tmp_path, counted(CONFIG), max_file_bytes=1500)
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    doubled = next(iter(load_file(first)))
    save_file(load_file(first) | load_file(second), second)
    with pytest.raises(ConfigError, match=f"twice:\n  {doubled} is in {first.name} and"):
        load(tmp_path)


def test_an_index_that_is_wrong_is_refused(tmp_path: Path) -> None:
    save(tmp_path, counted(CONFIG), max_file_bytes=1500)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.more"] = index["weight_map"][UP]
    path.write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=r"model\.more must be in model-"):
        load(tmp_path)
    path.write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(ConfigError, match="outside"):
        load(tmp_path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="no index"):
        load(tmp_path)


def test_files_that_are_absent_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a file of tensors")
    with pytest.raises(ConfigError, match="get the file anew"):
        load(tmp_path)


def test_two_saves_in_one_folder_are_refused(tmp_path: Path) -> None:
    save(tmp_path, counted(CONFIG), max_file_bytes=1500)
    save(tmp_path, counted(CONFIG))
    with pytest.raises(ConfigError, match="belongs to another save"):
        load(tmp_path)


def test_weights_that_are_not_floats_are_refused(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[UP] = tensors[UP].astype(np.int8)
        other = UP.replace("1", "2")
        tensors[other] = tensors[other].astype(np.float64)

        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(1)

    wanted = rf"model:\n  wrong type: {UP} is I8\n  wrong type: model\.layers\.2.* is F64\ncheck"
    with pytest.raises(ConfigError, match=wanted):
        load(broken(tmp_path, change))


def test_a_mesh_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    save(tmp_path, counted(CONFIG))
    mesh = replace(Topology.local(4), learner_tensor=4).learner_mesh
    shardings = tree_shardings(logical_axes(CONFIG), mesh, LEARNER_RULES)
    with pytest.raises(ConfigError, match="the weight layers/key of shape"):
        load(tmp_path, shardings=shardings)


def test_a_tied_head_must_equal_the_embedding() -> None:
    table = counted(CONFIG)["embedding"]
    other = table.copy()
    other[-1, -1] += 1
    check_tied_head(ArrayTensors({"table": table}), "table", "head")
    check_tied_head(ArrayTensors({"table": table, "head": table.copy()}), "table", "head")
    for head in (other, table[:-1]):
        with pytest.raises(ConfigError, match="tie_word_embeddings"):
            check_tied_head(ArrayTensors({"table": table, "head": head}), "table", "head")
