"""The main job as a user runs it: files, summary, determinism of what must be, signals."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace import load_policy
from headrace.pipeline.learner.fingerprint import fingerprint
from headrace.pipeline.recipes import load_recipe

ROOT = Path(__file__).parent.parent
TINY = [
    "--run.steps", "2", "--warm-start.steps", "2", "--warm-start.batch-conversations", "8",
    "--schedule.batch-groups", "2", "--rollout.group-size", "2", "--rollout.max-episodes", "8",
    "--model.num-layers", "1", "--model.width", "16", "--model.ffn-width", "16",
    "--learner.microbatch-rows", "4", "--sampler.rows", "8", "--sampler.prefill-lanes", "4",
    "--evaluate.tasks", "4", "--env.latency.mean-seconds", "0.01", "--run.no-predict",
]  # fmt: skip
FILES = {
    "config.toml", "metrics.jsonl", "trajectories.jsonl", "summary.json", "policy", "checkpoints",
}  # fmt: skip
SUMMARY = {
    "recipe", "steps", "seed", "eval_before", "eval_after", "reward_first", "reward_last",
    "wall_seconds", "trajectories", "trajectories_per_hour", "useful_trajectories_per_hour",
    "generated_tokens", "lag", "policy_version", "failures", "dropped",
    "compilations_after_warmup", "peak_rss_bytes", "params_sha256", "evaluations_during",
}  # fmt: skip


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "train", *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_a_small_run_leaves_whole_files_and_a_full_summary(tmp_path):
    directory = tmp_path / "run"
    process = start("calculator", "--run.dir", str(directory), *TINY)
    output, _ = process.communicate(timeout=110)
    assert process.returncode == 0, output
    assert {path.name for path in directory.iterdir()} == FILES
    assert str(directory) in output
    assert "Next:" in output

    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert set(summary) >= SUMMARY
    assert summary["interrupted_by"] is None
    assert summary["updates"] == summary["policy_version"] == 2
    assert summary["lag"]["max"] <= summary["lag"]["bound"]
    assert summary["compilations_after_warmup"] == 0
    assert {"success", "reward"} <= set(summary["eval_before"])
    assert fingerprint(load_policy(directory / "policy").params) == summary["params_sha256"]

    assert [record["step"] for record in lines(directory / "metrics.jsonl")] == [1, 2]
    trajectories = lines(directory / "trajectories.jsonl")
    assert len(trajectories) == summary["trained_trajectories"] == 8
    assert summary["trajectories"] >= 8
    assert all(line["messages"][0]["role"] == "user" for line in trajectories)

    # The resolved configuration runs again: it is the recipe with what was changed.
    changed = load_recipe(str(directory / "config.toml"))
    assert changed.run.name == "calculator"
    assert changed.model.width == 16
    settings = {key: value for key, value in asdict(changed.run).items() if value is not None}
    assert tomllib.loads((directory / "config.toml").read_text())["run"] == settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "least", "most"),
    [("float32", 0.0, 1e-5), ("bfloat16", 1e-4, 0.05), ("int8", 1e-4, 0.05)],
)
def test_the_mismatch_of_stored_weights_is_a_metric(weights, least, most, tmp_path):
    directory = tmp_path / "run"
    process = start(
        "calculator", "--run.dir", str(directory), *TINY, "--sampler.weights", weights,
        "--warm-start.steps", "0", "--evaluate.tasks", "0", "--schedule.max-mean-lag", "0",
    )  # fmt: skip
    output, _ = process.communicate(timeout=110)
    assert process.returncode == 0, output
    records = lines(directory / "metrics.jsonl")
    assert len(records) == 2
    for record in records:
        assert least <= record["mismatch_abs"] < most
        assert least**2 <= record["mismatch_kl"] < most**2


HANGS = """
import time
import trio
from examples.reverse import Reverse, tasks
from headrace.envs import EnvSpec

class Hangs(Reverse):
    async def step(self, message):
        await trio.to_thread.run_sync(time.sleep, 1000)  # can't be cancelled

SPEC = EnvSpec(make=Hangs, tasks=tasks, demonstrate=None, best_reward=1.0)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_code_that_refuses_to_be_cancelled_is_named_and_the_run_ended_by_force(tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS, encoding="utf-8")
    recipe = (ROOT / "examples" / "reverse.toml").read_text(encoding="utf-8")
    (tmp_path / "hangs.toml").write_text(
        recipe.replace("examples.reverse:SPEC", "hangs:SPEC"), encoding="utf-8"
    )
    process = subprocess.Popen(
        [
            sys.executable, "-m", "headrace", "train", "hangs.toml", "--run.dir", "run",
            *TINY, "--warm-start.steps", "0", "--evaluate.tasks", "0",
            "--rollout.env-deadline-seconds", "0.5", "--controller.stall-seconds", "2",
            "--controller.exit-deadline-seconds", "0.5",
        ],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    )  # fmt: skip
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 70, output
    assert "environment step, for" in output
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_law_17_lockstep_gives_the_same_parameters_whatever_the_latencies(tmp_path):
    processes = {
        seed: start(
            "guess_number", "--run.dir", str(tmp_path / seed), *TINY, "--run.steps", "5",
            "--warm-start.steps", "0", "--env.latency.kind", "pareto",
            "--schedule.deterministic", "--schedule.max-mean-lag", "1",
            "--env.latency.seed", seed, "--evaluate.every", seed,
        )
        for seed in "12"
    }  # fmt: skip
    hashes = []
    for seed, process in processes.items():
        output, _ = process.communicate(timeout=200)
        assert process.returncode == 0, output
        summary = json.loads((tmp_path / seed / "summary.json").read_text(encoding="utf-8"))
        assert summary["lag"] == {"mean": 0.8, "max": 1, "bound": 1, "mean_bound": 1}
        assert len(summary["evaluations_during"]) >= 1
        assert summary["useful_trajectories_per_hour"] > 0  # else nothing would be learnt
        hashes.append(summary["params_sha256"])
    assert hashes[0] == hashes[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        (signal.SIGINT, 0.3),  # while Python starts
        (signal.SIGTERM, 6.0),  # while programs compile
        (signal.SIGINT, 16.0),  # in training
    ],
)
def test_law_16_a_signal_at_any_time_ends_the_run_in_order(number, seconds, tmp_path):
    directory = tmp_path / "run"
    process = start(
        "calculator", "--run.dir", str(directory), *TINY, "--run.steps", "100000",
        start_new_session=True,
    )  # fmt: skip
    try:
        time.sleep(seconds)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode in (128 + number, -number), output  # the latter before it started
    assert not alive(process.pid)
    if not directory.exists():
        return
    assert {path.name for path in directory.iterdir()} <= FILES
    assert "Traceback" not in output
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    assert summary["interrupted_by"] == number.name
    assert len(lines(directory / "metrics.jsonl")) == summary["updates"]
    assert len(lines(directory / "trajectories.jsonl")) == summary["trained_trajectories"]


def alive(session):
    """Tell whether any process of the session is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True
