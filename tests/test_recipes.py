"""Recipes from TOML: law 20, an unknown or unused key is an error, and so is a wrong type."""

import tempfile
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import load_env
from headrace.pipeline.algorithms.config import ClipConfig
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.config import Recipe
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.recipes import builtin_recipes, load_recipe

NAMES = sorted(builtin_recipes())


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_recipe_loads_and_comes_back_from_a_run_directory(name, tmp_path):
    recipe = load_recipe(name)
    assert recipe.run.name == name
    RunDirectory.create(tmp_path).write_config(asdict(recipe))
    assert load_recipe(str(tmp_path / "config.toml")) == recipe


@pytest.mark.parametrize("name", NAMES)
def test_a_built_in_recipe_s_environment_has_as_many_tasks_as_it_draws(name):
    recipe = load_recipe(name)
    tasks = load_env(recipe.env.name).tasks
    assert len(tasks("train", recipe.prompts.num_tasks, 0)) == recipe.prompts.num_tasks
    assert len(tasks("eval", recipe.evaluate.tasks, 0)) == recipe.evaluate.tasks


def test_every_built_in_recipe_says_in_a_line_what_it_does():
    assert NAMES == ["calculator", "code", "frozen_lake", "guess_number", "lookup", "search"]
    assert all(len(text) > 20 for text in builtin_recipes().values())


def keys(config, path=()):
    for item in fields(config):
        value = getattr(config, item.name)
        yield (*path, item.name)
        if is_dataclass(value):
            yield from keys(value, (*path, item.name))


ALL_KEYS = sorted(keys(Recipe()))


@given(st.sampled_from(ALL_KEYS), st.data())
def test_law_20_a_misspelt_key_is_an_error_with_the_nearest_right_name(path, data):
    *tables, name = path
    cut = data.draw(st.integers(0, len(name) - 1))
    wrong = name[:cut] + "zz" + name[cut + 1 :]
    table = {wrong: 1}
    for outer in reversed(tables):
        table = {outer: table}
    with pytest.raises(ConfigError, match=wrong) as caught:
        load(table)
    assert "the keys there are" in str(caught.value)
    assert name in str(caught.value)


def load(table):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.toml"
        path.write_bytes(tomli_w.dumps(table).encode())
        return load_recipe(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\nsteps = '3'", r"^mine.toml: run.steps must be an integer, got '3'"),
        ("[run]\nsteps = true", r"run.steps must be an integer, got True"),
        ("[run]\nsteps = 1.5", r"run.steps must be an integer"),
        ("[run]\nview = 'loud'", r"run.view must be one of 'auto', 'live', 'plain', got 'loud'"),
        ("[text]\nwords = 'calculator'", r"text.words must be a list of text"),
        ("[text]\nwords = [1]", r"text.words must be text, got 1"),
        ("[algorithm.clip]\nlow = 'x'", r"algorithm.clip.low must be a number"),
        ("[env]\nlatency = 3", r"env.latency must be a table, got 3"),
        ("run = 3", r"run must be a table"),
        ('[algorithm.kl]\nreference = "base"', r"kl\.reference must be 'start' without adapters"),
        ("[rollout]\ngroup_size = 1", r"group_size must be >= 2.*got 1"),
        ("[schedule]\nmax_mean_lag = 3\nmax_lag = 2", r"max_lag must be >= max_mean_lag = 3"),
        ("[rollout]\nmax_tokens = 900", r"must be >= rollout.max_tokens \(900\)"),
        ("[rollout]\ntemperature = 0", r"temperature must be > 0"),
        ("[env.latency]\nmean_seconds = -1", r"env.latency.mean_seconds must be >= 0 and finite"),
        ("[learner]\nepochs = 0", r"^mine.toml: learner.epochs must be >= 1, got 0"),
        ("[algorithm.rewards]\nweights = ['a=1', 'b']", r"weights must be name=number, got 'b'"),
        ("[algorithm.rewards]\nweights = ['a=nan']", r"weights must be name=number"),
        ("[algorithm.rewards]\nweights = ['a=1.2.3']", r"weights must be name=number"),
        ("[run]\nsteps = -1", r"^mine.toml: run.steps must be in 0"),
        ("[run]\nname = ''", r"^mine.toml: run.name must be letters, digits.*got ''"),
        ("[run]\nname = 'a/b'", r"^mine.toml: run.name must be letters, digits.*got 'a/b'"),
        ('[run]\nname = "a\\n"', r"^mine.toml: run.name must be letters, digits"),
        ("[run]\ndir = ''", r"^mine.toml: run.dir must be the path of a folder, got ''"),
        ("[prompts]\nnum_tasks = 0", r"^mine.toml: prompts.num_tasks must be >= 1, got 0"),
        ("[env.latency]\nmax_seconds = -1", r"^mine.toml: env.latency.max_seconds must be"),
        ("[sampler]\nsteps = 1", r"^mine.toml: unknown key 'sampler.steps'; the keys there are"),
        ("steps = 1", r"^mine.toml: unknown key 'steps'; the keys there are"),
        ("[data]\npath = 'rows.jsonl'", "has the settings of headrace sft, prefer or distill"),
        ("[run\nsteps = 3", r"can't read the settings .*mine.toml"),
    ],
)
def test_a_wrong_value_is_named_with_file_key_range(text, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(tmp_path, text))


def test_weights_of_rewards_come_back_from_a_run_directory(tmp_path):
    recipe = load(
        {"algorithm": {"preset": "gdpo", "rewards": {"weights": ["a=1e-05", "env=-.5"]}}}
    )
    assert recipe.algorithm.rewards.weight_of == {"a": 1e-5, "env": -0.5}
    RunDirectory.create(tmp_path).write_config(asdict(recipe))
    assert load_recipe(str(tmp_path / "config.toml")).algorithm == recipe.algorithm


def test_integers_are_numbers():
    assert load({"algorithm": {"clip": {"low": 0}}}).algorithm.clip.low == 0.0


def test_an_unknown_name_or_file_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"calculater.*did you mean 'calculator'"):
        load_recipe("calculater")
    with pytest.raises(ConfigError, match=r"no recipe file .*none.toml"):
        load_recipe(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no recipe file"):
        load_recipe(str(tmp_path))


def test_a_method_of_a_paper_is_named_and_changed_by_the_recipe_s_own_keys():
    recipe = load({"algorithm": {"preset": "gspo", "clip": {"high": 0.5}}})
    assert recipe.algorithm == replace(PRESETS["gspo"], clip=ClipConfig(low=3e-4, high=0.5))
    named = load_recipe("guess_number", algorithm="rloo")
    assert named.algorithm == PRESETS["rloo"]
    with pytest.raises(ConfigError, match=r"unknown algorithm 'grop' \(did you mean 'grpo'\?\)"):
        load({"algorithm": {"preset": "grop"}})


def test_one_member_is_enough_where_nothing_is_compared():
    table = {"rollout": {"group_size": 1}, "algorithm": {"preset": "reinforce"}}
    assert load(table).rollout.group_size == 1


def test_a_pretrained_policy_brings_its_sizes():
    recipe = load_recipe("calculator", policy="smollm2")
    assert recipe.policy.path == "smollm2"
    assert (recipe.run.name, recipe.run.steps) == ("calculator", 5)
    assert recipe.sampler.rows == 8
    assert recipe.lora.on
    assert recipe.env == load_recipe("calculator").env
    assert (recipe.model, recipe.text) == (Recipe().model, Recipe().text)


def test_a_pretrained_policy_leaves_the_stop_ids_that_a_recipe_needs():
    alphabet = load_recipe("guess_number")
    assert len(alphabet.text.stop_characters) >= 8  # with the end, more than the default
    recipe = load_recipe("guess_number", policy="runs/guess_number/policy")
    assert recipe.sampler.max_stop_ids == alphabet.sampler.max_stop_ids


def test_a_policy_without_sizes_of_its_own_gets_those_of_pretrained_ones():
    recipe = load_recipe("calculator", policy="somebody/some-model")
    assert recipe.policy.path == "somebody/some-model"
    assert recipe.rollout.max_tokens == recipe.sampler.context_tokens == 2048


def test_a_recipe_made_for_a_policy_keeps_its_sizes(tmp_path):
    text = '[policy]\npath = "a"\nchat.history = "split"\n[sampler]\nrows = 3\n'
    recipe = load_recipe(write(tmp_path, text), policy="b")
    assert (recipe.policy.path, recipe.policy.chat.history) == ("b", "split")
    assert recipe.sampler.rows == 3
