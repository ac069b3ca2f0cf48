"""Runs that start from a pretrained policy: a tiny one in a folder, as the Hub has them."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from headrace import ConfigError, Policy, TextFiles, load_policy, save_policy
from headrace.envs.calculator_chat import SYSTEM
from headrace.pipeline.assemble import assemble, make_learner, make_start
from headrace.pipeline.models.families import family_of
from headrace.pipeline.models.parameters import declare
from headrace.pipeline.policy.start import compile_final, without_params
from headrace.pipeline.recipes import load_recipe
from headrace.pipeline.text.template_renderer import TemplateRenderer
from tests.fakes.thinking import TURNS, save_thinking_policy
from tests.fakes.weights import assert_same
from tests.test_train import lines, start
from tests.text.templates import CHATML
from tests.text.vocabularies import definition, entry

VOCAB = 512
HUB = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": VOCAB,
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "tie_word_embeddings": True,
}
SMALL = [
    "--run.steps", "1", "--run.no-predict", "--schedule.batch-groups", "2",
    "--rollout.group-size", "2", "--rollout.max-episodes", "4", "--rollout.max-turns", "2",
    "--rollout.max-tokens", "768", "--rollout.max-turn-tokens", "8", "--sampler.rows", "16",
    "--sampler.context-tokens", "768", "--learner.row-tokens", "768", "--evaluate.tasks", "2",
    "--lora.rank", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a policy with random weights, a small vocabulary and a chat template."""
    content = definition("byte-level", (entry("<|im_start|>"), entry("<|im_end|>")))
    files = {
        "tokenizer.json": json.dumps(content).encode(),
        "chat_template.jinja": CHATML.encode(),
    }
    config = family_of(HUB).config_from(HUB)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda weight: 0.1 * rng.standard_normal(weight.shape, np.float32), declare(config, VOCAB)
    )
    place = tmp_path_factory.mktemp("policies") / "tiny"
    save_policy(Policy(config, VOCAB, params, settings=HUB), place)
    for name, text in files.items():
        (place / name).write_bytes(text)
    return place


def recipe_for(folder: Path, **lora: object):
    recipe = load_recipe("calculator", policy=str(folder))
    return replace(recipe, lora=replace(recipe.lora, rank=2, **lora))


def test_the_policy_brings_its_model_its_template_and_its_chat_environment(folder: Path) -> None:
    parts = assemble(recipe_for(folder))
    assert isinstance(parts.renderer, TemplateRenderer)
    assert parts.decoder.vocab_size == VOCAB
    first = parts.renderer.text(parts.renderer.prompt(parts.spec.demonstrate(*script(parts))[:2]))
    assert SYSTEM in first
    assert '"calculator"' in first


def script(parts):
    return parts.train_tasks[0], np.random.default_rng(0)


def test_fresh_adapters_leave_the_policy_as_it_was(folder: Path) -> None:
    recipe = recipe_for(folder)
    parts = assemble(recipe)
    begin = make_start(recipe, parts)
    loaded = load_policy(folder)
    assert_same(begin.frozen, loaded.params)
    policy = without_params(parts.policy)
    assert not policy.params
    final = compile_final(policy, begin, recipe.lora)(begin.trained)
    assert_same(final.params, loaded.params)
    assert isinstance(final.text, TextFiles)


@pytest.mark.parametrize("rank", [0, 2])
def test_what_is_trained_are_adapters_or_everything(folder: Path, rank: int) -> None:
    recipe = recipe_for(folder)
    recipe = replace(recipe, lora=replace(recipe.lora, rank=rank))
    parts = assemble(recipe)
    begin = make_start(recipe, parts)
    sizes = sum(leaf.size for leaf in jax.tree.leaves(begin.trained))
    everything = sum(leaf.size for leaf in jax.tree.leaves(load_policy(folder).params))
    assert (sizes == everything) == (rank == 0)
    assert_same(make_learner(recipe, parts, begin).params, begin.trained)


def test_scripts_that_are_too_long_are_found_before_anything_is_compiled(folder: Path) -> None:
    recipe = recipe_for(folder)
    short = replace(
        recipe,
        learner=replace(recipe.learner, row_tokens=32),
        rollout=replace(recipe.rollout, max_tokens=32),
        warm_start=replace(recipe.warm_start, steps=1),
    )
    with pytest.raises(ConfigError, match=r"learner.row_tokens must be >= \d+"):
        assemble(short)


def test_sizes_that_the_sampler_refuses_are_found_as_early(folder: Path) -> None:
    recipe = recipe_for(folder)
    few = replace(recipe, sampler=replace(recipe.sampler, rows=2))
    with pytest.raises(ConfigError, match=r"sampler.rows must be >= 16"):
        assemble(few)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_from_a_folder_ends_with_a_policy_that_can_be_loaded_again(folder, tmp_path) -> None:
    run = tmp_path / "run"
    process = start("calculator", "--policy", str(folder), "--run.dir", str(run), *SMALL)
    output, _ = process.communicate(timeout=380)
    assert process.returncode == 0, output
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["updates"] == 1
    assert summary["compilations_after_warmup"] == 0
    policy = load_policy(run / "policy")
    assert policy.config == load_policy(folder).config
    assert isinstance(policy.text, TextFiles)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_learns_from_episodes_whose_thoughts_are_stripped(tmp_path) -> None:
    save_thinking_policy(tmp_path / "policy")
    run = tmp_path / "run"
    process = start(
        "calculator", "--policy", str(tmp_path / "policy"), "--run.dir", str(run),
        "--env.name", "tests.fakes.thinking:SPEC", "--policy.chat.history", "split", *SMALL,
        "--run.steps", "6", "--lora.rank", "0", "--learner.learning-rate", "0.1",
        "--rollout.max-turns", str(TURNS), "--rollout.group-size", "8",
        "--rollout.max-episodes", "16",
    )  # fmt: skip
    output, _ = process.communicate(timeout=380)
    assert process.returncode == 0, output
    episodes = lines(run / "trajectories.jsonl")
    whole = [episode for episode in episodes if len(episode["turns"]) == TURNS]
    assert len(whole) > len(episodes) / 2
    # Each time the user speaks, the thoughts before are stripped.
    assert all(episode["samples"] == TURNS for episode in whole)
    assert episodes[0]["messages"][1]["reasoning"] == "h"
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["compilations_after_warmup"] == 0
    assert summary["reward_last"] > summary["reward_first"] + 0.2
