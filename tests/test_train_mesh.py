"""`headrace train` on meshes: the tokens of one device, its updates up to rounding, no waits."""

import shutil
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
import trio

from headrace import ConfigError, load_policy
from headrace.pipeline.assemble import assemble
from headrace.pipeline.cli import run
from headrace.pipeline.commands import train
from headrace.pipeline.learner.placement import RolloutMeshConfig
from headrace.pipeline.learner.service import Learner
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.recipes import load_recipe
from headrace.pipeline.train import Job
from tests.test_resume import Camera
from tests.test_train import lines
from tests.test_train_resume import outcome, small, summary_of

ONE = RolloutMeshConfig()
COLLOCATED = RolloutMeshConfig(2, 2)
DISAGGREGATED = RolloutMeshConfig(2, 2, sampler_devices=4)
# Adam as it is usually set makes a step of full size of the rounding of a gradient near 0.
EPSILON = 1e-2


@pytest.fixture(autouse=True)
def _a_process_that_lives_on(monkeypatch):
    monkeypatch.setattr(train, "end_without_threads", lambda code, after_seconds: None)


def recipe(mesh, **parts):
    """Pure reinforcement learning in lockstep, with an evaluation that is pinned to a version."""
    settings = small("guess_number")
    latency = replace(settings.env.latency, kind="lognormal", mean_seconds=0.01)
    parts = {
        "mesh": mesh,
        "warm_start": replace(settings.warm_start, steps=0),
        "rollout": replace(settings.rollout, group_size=4, max_episodes=32),
        "learner": replace(settings.learner, microbatch_rows=8, adam_epsilon=EPSILON),
        "env": replace(settings.env, latency=latency),
        "evaluate": replace(settings.evaluate, tasks=2, every=2),
        **parts,
    }
    return replace(settings, **parts)


def trained(settings, where: Path) -> Path:
    """Run it in this process; keep what it was after each update beside it."""
    album = where.parent / f"{where.name} after"
    settings = replace(settings, run=replace(settings.run, dir=str(where)))
    directory = RunDirectory.create_for(settings.run.dir, settings.run.name)
    job = Job(settings, assemble(settings), directory, Camera(where, album))
    trio.run(job.run, time.monotonic())
    assert summary_of(where)["compilations_after_warmup"] == 0
    return where


def assert_law_12(found: Path, expected: Path, *, atol: float = 1e-6) -> None:
    """Everything that was sampled is the same, and what was learnt is up to rounding."""
    results, others = outcome(found), outcome(expected)
    for record, other in zip(results[1], others[1], strict=True):
        chex.assert_trees_all_close(record, other, rtol=1e-4, atol=1e-5)
    talks, same = ([line["messages"] for line in them[2]] for them in (results, others))
    assert talks == same
    params, them = (jax.device_get(load_policy(folder).params) for folder in (found, expected))
    chex.assert_trees_all_close(params, them, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make a run once, by the name of its mesh."""
    folder = tmp_path_factory.mktemp("runs")
    meshes = {"one": ONE, "collocated": COLLOCATED, "disaggregated": DISAGGREGATED}

    @cache
    def made(name: str) -> Path:
        return trained(recipe(meshes[name]), folder / name)

    return made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["collocated", "disaggregated"])
def test_law_12_a_run_on_a_mesh_samples_and_learns_what_it_does_on_one_device(runs, name):
    assert_law_12(runs(name), runs("one"))
    summary = summary_of(runs(name))
    assert summary["reward_last"] != summary["reward_first"]  # else little would be learnt
    assert [line["lag_max"] for line in lines(runs(name) / "metrics.jsonl")] == [0, 1, 2, 2, 2]
    learner, sampler = ([*range(4)], [*range(4, 8)])
    devices = {side: each["devices"] for side, each in summary["devices"].items()}
    assert devices["learner"] == learner
    assert devices["sampler"] == (sampler if name == "disaggregated" else learner)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_17_on_the_same_mesh_latencies_change_no_bit(runs, tmp_path):
    settings = recipe(DISAGGREGATED)
    latency = replace(settings.env.latency, kind="pareto", seed=1)
    other = trained(replace(settings, env=replace(settings.env, latency=latency)), tmp_path / "r")
    sha256 = "params_sha256"
    assert summary_of(other)[sha256] == summary_of(runs("disaggregated"))[sha256]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sampler_goes_on_while_other_devices_learn(tmp_path, monkeypatch):
    """An update that lasts until something more is sampled ends."""
    settings = recipe(DISAGGREGATED)
    settings = replace(settings, run=replace(settings.run, dir=str(tmp_path / "run")))
    parts = assemble(settings)
    grown = []

    def update(learner, batch):
        before, deadline = parts.sampler.statistics().generated_tokens, time.monotonic() + 10
        while parts.sampler.statistics().generated_tokens == before:
            if time.monotonic() > deadline:
                break  # everything that may be sampled is, as at the end of a run
            time.sleep(0.001)
        grown.append(parts.sampler.statistics().generated_tokens > before)
        return update_really(learner, batch)

    update_really = Learner._update
    monkeypatch.setattr(Learner, "_update", update)
    directory = RunDirectory.create_for(settings.run.dir, settings.run.name)
    trio.run(Job(settings, parts, directory, Camera(tmp_path / "run", tmp_path)).run, 0.0)
    assert any(grown)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["collocated", "disaggregated"])
def test_law_17_a_run_on_a_mesh_that_was_killed_ends_as_one_that_was_not(runs, tmp_path, name):
    where = tmp_path / "run"
    shutil.copytree(runs(name).parent / f"{name} after" / "3", where)
    assert run(["resume", str(where)]) == 0
    assert outcome(where) == outcome(runs(name))
    assert summary_of(where)["compilations_after_warmup"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flags", [["1", "1", "0"], ["4", "1", "2"]])
def test_law_12_a_run_goes_on_on_another_mesh(runs, tmp_path, flags):
    where = tmp_path / "run"
    shutil.copytree(runs("disaggregated").parent / "disaggregated after" / "3", where)
    names = "--mesh.fsdp", "--mesh.tensor", "--mesh.sampler-devices"
    mesh = [text for pair in zip(names, flags, strict=True) for text in pair]
    assert run(["resume", str(where), *mesh]) == 0
    assert_law_12(where, runs("one"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["adapters", "critic", "int8", "experts"])
def test_law_12_whatever_is_learnt_and_published(tmp_path, kind):
    def settings(mesh):
        plain = recipe(mesh)
        return {
            "adapters": lambda: replace(
                plain,
                lora=replace(plain.lora, rank=2, alpha=2.0, base="int8", publish="adapters"),
                algorithm=replace(
                    plain.algorithm, kl=replace(plain.algorithm.kl, coefficient=0.1)
                ),
            ),
            "critic": lambda: replace(
                plain, algorithm=load_recipe("guess_number", algorithm="ppo").algorithm
            ),
            "int8": lambda: replace(plain, sampler=replace(plain.sampler, weights="int8")),
            "experts": lambda: replace(plain, model=with_experts(plain.model)),
        }[kind]()

    one, mesh = (trained(settings(m), tmp_path / str(m.fsdp)) for m in (ONE, DISAGGREGATED))
    assert_law_12(mesh, one)


def with_experts(model):
    experts = replace(model.traits.experts, count=4, per_token=2)
    return replace(model, traits=replace(model.traits, experts=experts))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_law_12_of_a_teacher(runs, tmp_path):
    def settings(mesh):
        plain = recipe(mesh)
        return replace(plain, distillation=replace(plain.distillation, teacher=str(runs("one"))))

    one, mesh = (trained(settings(m), tmp_path / str(m.fsdp)) for m in (ONE, COLLOCATED))
    assert_law_12(mesh, one)
    assert all(np.isfinite(line["teacher_kl"]) for line in lines(mesh / "metrics.jsonl"))


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (
            RolloutMeshConfig(4, 2, sampler_devices=1),
            "mesh.fsdp times mesh.tensor plus mesh.sampler_devices must be at most 8, the devices "
            "of this process, got 9; lower one of them, or try it out with JAX_NUM_CPU_DEVICES=9",
        ),
        (
            RolloutMeshConfig(2, 2, sampler_devices=3),
            "mesh.sampler_tensor must be a divisor of 3, the sampler's devices, got 2",
        ),
        (RolloutMeshConfig(3, 1), "mesh.fsdp must be a divisor of learner.microbatch_rows, 8"),
        (RolloutMeshConfig(1, 2, sampler_tensor=4), "mesh.sampler_tensor must be a divisor of"),
        (
            RolloutMeshConfig(2, 1, sampler_devices=4, sampler_tensor=4),
            "mesh.sampler_tensor must be a divisor of 2, the learner's devices, which cut what is "
            "published, got 4",
        ),
        (RolloutMeshConfig(1, 1, sampler_devices=3), "sampler.rows must be a multiple of 3"),
        (RolloutMeshConfig(4, 1, sampler_tensor=4), "model.num_kv_heads must be a multiple of 4"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, message):
    with pytest.raises(ConfigError, match=message):
        assemble(recipe(mesh))
    with pytest.raises(ConfigError, match=r"mesh.sampler_devices must be >= 0"):
        RolloutMeshConfig(sampler_devices=-1)
