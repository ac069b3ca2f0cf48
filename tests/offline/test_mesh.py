"""Law 12 of runs without rollouts: a mesh of any shape learns what one device learns."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from functools import partial
from pathlib import Path

import chex
import jax
import pytest

from headrace import ConfigError
from headrace.pipeline.learner.optimizer import LearnerConfig
from headrace.pipeline.learner.placement import MeshConfig
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.lora import LoraConfig
from headrace.pipeline.models.parameters import init
from headrace.pipeline.offline import learner as learner_module
from headrace.pipeline.offline.assemble import assemble_offline, make_learner, row_stream
from headrace.pipeline.offline.config import (
    DataConfig,
    DistillConfig,
    DistillRecipe,
    PreferenceConfig,
    PreferRecipe,
    SftRecipe,
)
from headrace.pipeline.policy import Policy, save_policy
from headrace.pipeline.run_config import CommonRunConfig
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from tests.learner.toy import quick_jit

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TEXT = TextConfig(characters="0123456789+")
VOCAB = CharacterRenderer(TEXT).vocab_size
MODEL = ModelConfig(
    num_layers=2, width=32, num_heads=4, num_kv_heads=4, head_width=8, ffn_width=32
)
# Adam as it is usually set makes a step of full size of the rounding of a gradient near 0.
LEARNER = LearnerConfig(learning_rate=0.01, adam_epsilon=1e-2, microbatch_rows=8, row_tokens=32)
UPDATES, ROWS = 3, 16


def recipe(kind, file, **parts):
    data = DataConfig(path=str(EXAMPLES / file), batch_rows=ROWS)
    run = CommonRunConfig(steps=UPDATES)
    return kind(run=run, data=data, text=TEXT, model=MODEL, learner=LEARNER, **parts)


SFT = partial(recipe, SftRecipe, "sums.jsonl")
PREFER = partial(recipe, PreferRecipe, "sums_pairs.jsonl")
RECIPES = {
    "sft": SFT(),
    "lora": SFT(lora=LoraConfig(rank=2)),
    "lora int8": SFT(lora=LoraConfig(rank=2, base="int8")),
    "lora nf4": SFT(lora=LoraConfig(rank=2, base="nf4")),
    "dpo": PREFER(),
    "dpo lora": PREFER(lora=LoraConfig(rank=2)),
    "kto": PREFER(preference=PreferenceConfig("kto")),
}


def learn(settings, fsdp, tensor, *, updates=UPDATES):
    """Take some updates; give the metrics of each, the policy's parameters, and the state."""
    settings = replace(settings, mesh=MeshConfig(fsdp, tensor))
    parts = assemble_offline(settings)
    learner, final = make_learner(settings, parts)
    stream = row_stream(settings, parts)
    taken = [parts.reader.take(stream.take(ROWS)) for _ in range(updates)]
    found = [learner.update(*parts.pack(one.examples)) for one in taken]
    return found, jax.device_get(final(learner.params).params), learner.state


def assert_law_12(settings, *meshes, updates=UPDATES):
    expected, params, state = learn(settings, 1, 1, updates=updates)
    # Merging multiplies what adapters differ by.
    scale = max(1.0, settings.lora.scale) if settings.lora.on else 1.0
    for mesh in meshes:
        found, others, other = learn(settings, *mesh, updates=updates)
        trained = jax.device_get((other.params, state.params))
        chex.assert_trees_all_close(*trained, rtol=0, atol=1e-6)
        chex.assert_trees_all_close(others, params, rtol=0, atol=1e-6 * scale)
        chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-6)


def compiled_quickly(function, *operands, out, donate=()):
    return quick_jit(function, donate_argnums=donate, out_shardings=out).lower(*operands).compile()


def test_law_12_an_update_on_a_mesh_is_that_of_one_device(monkeypatch):
    """The quick one of these."""
    monkeypatch.setattr(learner_module, "_compiled", compiled_quickly)
    sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "num_kv_heads": 2, "ffn_width": 16}
    learner = replace(LEARNER, microbatch_rows=4, row_tokens=16)
    settings = replace(RECIPES["lora"], model=replace(MODEL, **sizes), learner=learner)
    assert_law_12(settings, (2, 2), updates=1)


IN_FLOAT64 = """
    import flax, jax, optax, orbax.checkpoint
    import jax.numpy as jnp
    import numpy as np
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64  # for what is imported now
    from tests.offline.test_mesh import RECIPES, learn

    for name in ("sft", "lora"):
        one, other = (jax.tree.leaves(learn(RECIPES[name], *mesh)[1]) for mesh in ((1, 1), (2, 2)))
        assert {leaf.dtype for leaf in one} == {np.dtype("float64")}
        print(max(np.abs(a - b).max() for a, b in zip(one, other, strict=True)))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_12_nothing_but_rounding_differs_on_a_mesh():
    """In float64 nothing is left of the differences, nor of those that adapters multiply by 16."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IN_FLOAT64)],
        capture_output=True, text=True, timeout=590, check=False, cwd=EXAMPLES.parent,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "JAX_NUM_CPU_DEVICES": "8"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    full, adapters = map(float, process.stdout.split())
    assert full < 2e-15
    assert adapters < 2e-14


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", RECIPES)
def test_law_12_a_mesh_learns_what_one_device_learns(name):
    others = [(2, 1), (1, 2), (8, 1)] if name == "sft" else []
    assert_law_12(RECIPES[name], (2, 2), (4, 2), *others)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stored", ["float32", "int8"])
def test_law_12_a_teacher_on_a_mesh_says_what_it_says_on_one_device(tmp_path, stored):
    params = init(MODEL, VOCAB, jax.random.key(3))
    save_policy(Policy(MODEL, VOCAB, params, TEXT), tmp_path / "teacher")
    distill = DistillConfig(str(tmp_path / "teacher"), top_k=5, teacher_weights=stored)
    assert_law_12(recipe(DistillRecipe, "sums.jsonl", distill=distill), (2, 2), (4, 2))


@pytest.mark.slow
def test_each_device_has_its_part_of_the_state_after_an_update_too():
    _, _, state = learn(RECIPES["sft"], 4, 2)
    moments = state.opt_state[1][0]
    for tree in (state.params, moments.mu, moments.nu):
        query, norm = tree["layers"]["query"], tree["final_norm"]
        assert {shard.data.shape for shard in query.addressable_shards} == {(2, 8, 2, 8)}
        assert {shard.data.shape for shard in norm.addressable_shards} == {(8,)}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (
            MeshConfig(16, 1),
            "mesh.fsdp times mesh.tensor must be at most 8, the devices of this process, got 16",
        ),
        (MeshConfig(3, 1), "mesh.fsdp must be a divisor of learner.microbatch_rows, 8, got 3"),
        (MeshConfig(1, 3), "mesh.tensor must be a divisor of the model's kv heads, 4, got 3"),
        (MeshConfig(1, 4), "mesh.tensor must be a divisor of the vocabulary's entries, 18"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, message):
    with pytest.raises(ConfigError, match=message):
        assemble_offline(replace(RECIPES["sft"], mesh=mesh))


@pytest.mark.parametrize("sizes", [(0, 1), (1, -1)])
def test_sizes_of_a_mesh_are_checked(sizes):
    with pytest.raises(ConfigError, match="must be >= 1"):
        MeshConfig(*sizes)
