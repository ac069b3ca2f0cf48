"""Law 17 for the main job: of kills and resumes nothing is to be seen at the end."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from headrace import load_policy
from headrace.pipeline.assemble import assemble
from headrace.pipeline.cli import run
from headrace.pipeline.commands import train
from headrace.pipeline.learner.service import Learner
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.recipes import load_recipe
from headrace.pipeline.run_config import CheckpointConfig
from headrace.pipeline.train import Job
from tests.test_cli import mistake
from tests.test_offline_commands import write
from tests.test_resume import Camera
from tests.test_train import ROOT, TINY, lines

STEPS = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def small(name, **run_settings):
    """A recipe that trains a tiny model in lockstep for some updates."""
    recipe = load_recipe(name)
    return replace(
        recipe,
        run=replace(recipe.run, steps=STEPS, predict=False, **run_settings),
        model=replace(recipe.model, num_layers=1, width=16, ffn_width=16),
        warm_start=replace(recipe.warm_start, steps=2, batch_conversations=8),
        schedule=replace(recipe.schedule, batch_groups=2, max_mean_lag=2, deterministic=True),
        rollout=replace(recipe.rollout, group_size=2, max_episodes=8),
        learner=replace(recipe.learner, microbatch_rows=4, decay_share=0.0),
        sampler=replace(recipe.sampler, rows=8, prefill_lanes=4),
        env=replace(recipe.env, latency=replace(recipe.env.latency, mean_seconds=0.01)),
        evaluate=replace(recipe.evaluate, tasks=2),
        checkpoint=CheckpointConfig(every=2),
    )


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    """A run that was never killed, `whole`, and what it was after each update."""
    album = tmp_path_factory.mktemp("album")
    where = album / "whole"
    recipe = small("guess_number", dir=str(where))
    directory = RunDirectory.create_for(recipe.run.dir, recipe.run.name)
    job = Job(recipe, assemble(recipe), directory, Camera(where, album))
    trio.run(job.run, time.monotonic())
    return album


@pytest.fixture(autouse=True)
def _a_process_that_lives_on(monkeypatch):
    monkeypatch.setattr(train, "end_without_threads", lambda code, after_seconds: None)


# What depends on time, on what was killed, or on how often.
PASSING = (
    "wall_seconds", "rl_seconds", "trajectories", "trajectories_per_hour", "peak_rss_bytes",
    "useful_trajectories_per_hour", "generated_tokens", "resumed_from", "interrupted_by",
)  # fmt: skip
LASTING = (
    "step",
    "policy_version",
    "reward",
    "success",
    "lag_mean",
    "lag_max",
    "loss",
    "grad_norm",
)


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def outcome(folder: Path) -> tuple:
    """All that a run leaves which doesn't depend on time or on how often it was killed."""
    summary = summary_of(folder)
    metrics = [{name: line[name] for name in LASTING} for line in lines(folder / "metrics.jsonl")]
    trajectories = [
        {**line, "seconds": 0, "turns": [turn[:2] for turn in line["turns"]]}
        for line in lines(folder / "trajectories.jsonl")
    ]
    return {key: summary[key] for key in summary.keys() - {*PASSING}}, metrics, trajectories


@pytest.mark.parametrize("killed_after", [1, 3, 5])
def test_law_17_a_run_that_was_killed_ends_as_one_that_was_not(
    album, tmp_path, capsys, killed_after
):
    where = tmp_path / "run"
    shutil.copytree(album / str(killed_after), where)
    (where / ".policy-x" / "policy").mkdir(parents=True)  # of a kill while it was saved
    (where / "checkpoints" / "9.orbax-checkpoint-tmp").mkdir(parents=True, exist_ok=True)
    assert run(["resume", str(where)]) == 0
    assert ("the run begins again" in capsys.readouterr().out) == (killed_after == 1)
    assert not list(where.glob(".policy-*"))
    assert outcome(where) == outcome(album / "whole")
    checkpoint = killed_after // 2 * 2
    assert summary_of(where)["resumed_from"] == ([checkpoint] if killed_after > 1 else [])
    assert [path.name for path in (where / "checkpoints").iterdir()] == ["5"]
    load_policy(where)


def test_a_run_that_has_ended_takes_more_updates(album, tmp_path):
    where, longer = tmp_path / "run", tmp_path / "longer"
    shutil.copytree(album / "whole", where)
    assert run(["resume", str(where)]) == 0
    assert outcome(where) == outcome(album / "whole")
    assert run(["resume", str(where), "--run.steps", "7"]) == 0
    assert run(["train", str(where / "config.toml"), "--run.dir", str(longer)]) == 0
    assert outcome(where) == outcome(longer)
    assert summary_of(where)["updates"] == 7


def test_what_an_end_left_stays_until_another_end(album, tmp_path, monkeypatch):
    async def fail(*_):
        raise RuntimeError("a chip is lost")

    where = tmp_path / "run"
    shutil.copytree(album / "whole", where)
    left = {path: path.read_bytes() for path in [where / "summary.json", *where.glob("policy/*")]}
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", fail)
        assert run(["resume", str(where), "--run.steps", "7"]) == 1
    assert {path: path.read_bytes() for path in left} == left
    assert run(["resume", str(where)]) == 0
    assert (summary_of(where)["updates"], summary_of(where)["finished"]) == (7, True)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learner.learning-rate", "1"], "learner.learning_rate was"),
        (["--schedule.max-lag", "9"], "schedule.max_lag was 4, is 9; leave them"),
        (["--run.steps", "3"], "run.steps must be >= 4, the updates that were taken, got 3"),
        (["--run.dir", "x"], "run.dir must be left out"),
        (["--env.name", "calculator"], "env.name was 'guess_number', is 'calculator'"),
    ],
)
def test_what_would_teach_something_else_is_refused(album, tmp_path, capsys, flags, message):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    before = sorted(where.rglob("*"))
    assert message in mistake(capsys, "resume", str(where), *flags)
    assert sorted(where.rglob("*")) == before


def test_only_one_process_goes_on(album, capsys):
    with RunDirectory.reopen(album / "5").held():
        assert "another process is at work" in mistake(capsys, "resume", str(album / "5"))


@pytest.mark.parametrize("item", ["record/metadata", "state/_METADATA"])
def test_a_damaged_checkpoint_is_named(album, tmp_path, capsys, item):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    (where / "checkpoints" / "4" / item).unlink()
    message = mistake(capsys, "resume", str(where))
    assert "checkpoints/4 can't be read" in message
    assert "there is no older one; a new run can begin with" in message


@pytest.mark.parametrize("change", [{"controller": {}}, {"settings": []}, {"x": 1}])
def test_a_record_that_is_not_whole_is_named_with_its_checkpoint(album, tmp_path, capsys, change):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    record = where / "checkpoints" / "4" / "record" / "metadata"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    message = mistake(capsys, "resume", str(where))
    assert "checkpoints/4 can't be used: its record is not whole" in message


def test_a_run_without_a_checkpoint_is_not_begun_again(album, tmp_path, capsys):
    where = tmp_path / "run"
    shutil.copytree(album / "whole", where)
    shutil.rmtree(where / "checkpoints")
    assert "a policy but no checkpoint to go on from" in mistake(capsys, "resume", str(where))


def headrace(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    )  # fmt: skip


def test_other_tasks_are_refused(tmp_path, capsys):
    tasks, where = tmp_path / "tasks.jsonl", tmp_path / "run"
    numbers = [{"id": number, "secret": number % 15} for number in range(20)]
    write(tasks, numbers)
    flags = ["--prompts.path", str(tasks), *TINY, "--warm-start.steps", "0"]
    with headrace("train", "guess_number", "--run.dir", str(where), *flags) as process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    write(tasks, [{**number, "secret": 3} for number in numbers])
    message = mistake(capsys, "resume", str(where))
    assert "isn't the file that this run began with" in message


@pytest.mark.parametrize(
    "schedule", ["lockstep 0 1", "lockstep 1 1", "lockstep 2 3", "bounded 1 1"]
)
def test_law_17_with_real_kills_at_random_times(tmp_path, schedule):
    kind, eta, every = schedule.split()
    settings = [
        *TINY, "--run.steps", "16", "--checkpoint.every", "3", "--env.latency.kind", "pareto",
        "--env.latency.mean-seconds", "0.1", "--schedule.max-mean-lag", eta,
        "--schedule.publish-every", every,
        *["--schedule.deterministic"] * (kind == "lockstep"),
    ]  # fmt: skip
    whole, where, rng = tmp_path / "whole", tmp_path / "killed", random.Random(schedule)
    with headrace("train", "guess_number", "--run.dir", str(whole), *settings) as process:
        process.communicate()
    process = headrace("train", "guess_number", "--run.dir", str(where), *settings)
    for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
        with process:
            steps = (line for line in process.stdout if line.startswith("step "))
            for _ in range(rng.randint(1, 6)):
                next(steps, None)
            time.sleep(rng.random() * 0.3)
            process.send_signal(stop)
            process.stdout.read()
        process = headrace("resume", str(where))
    with process:
        output, _ = process.communicate()
    assert process.returncode == 0, output
    steps = [line["step"] for line in lines(where / "metrics.jsonl")]
    assert steps == list(range(1, 17))
    assert summary_of(where)["compilations_after_warmup"] == 0
    if kind == "lockstep":
        assert outcome(where) == outcome(whole)
    else:
        groups = {(line["task"], line["group"]) for line in lines(where / "trajectories.jsonl")}
        assert len({task for task, _ in groups}) == len(groups) == 16 * 2


def test_a_signal_saves_the_update_of_that_moment_and_without_checkpoints_ends_at_once(tmp_path):
    for every, saved in (("100", True), ("0", False)):
        where = tmp_path / every
        process = headrace(
            "train", "guess_number", "--run.dir", str(where), *TINY, "--run.steps", "1000",
            "--checkpoint.every", every,
        )  # fmt: skip
        with process:
            steps = (line for line in process.stdout if line.startswith("step "))
            next(steps)
            process.send_signal(signal.SIGTERM)
            output = process.stdout.read()
        assert process.returncode == 128 + signal.SIGTERM
        assert ("saving a checkpoint after the update of this moment" in output) == saved
        assert ("Go on with it: headrace resume" in output) == saved
        updates = [path.name for path in (where / "checkpoints").glob("*")]
        assert updates == ([str(summary_of(where)["updates"])] if saved else [])


def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(album, tmp_path):
    where = tmp_path / "run"
    shutil.copytree(album / "3", where)
    limit = max(path.stat().st_size for path in where.rglob("*") if path.is_file())
    script = f"ulimit -f {limit // 2048}; exec {sys.executable} -m headrace resume {where}"
    process = subprocess.run(
        ["bash", "-c", script], check=False, cwd=ROOT, capture_output=True, text=True,
        # Nothing of this process may be left in the tests' cache of programs, nor is there room.
        env={**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"},
    )  # fmt: skip
    assert process.returncode == 1, process.stderr
    told, advice = process.stderr.splitlines()  # and no traceback
    assert told.endswith(f" MB, can't be written: {os.strerror(errno.EFBIG)}")
    assert f"the checkpoint {where}/checkpoints/4, of about " in told
    assert f"until update 2 is saved; mend that, then go on: headrace resume {where}" in advice
    assert run(["resume", str(where)]) == 0
    assert outcome(where) == outcome(album / "whole")
