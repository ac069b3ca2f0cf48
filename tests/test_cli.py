"""The command line: a user's mistake is one clear message, exit code 2, nothing overwritten."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import trio

from headrace.pipeline.cli import main, run
from headrace.pipeline.commands import train
from headrace.pipeline.commands.messages import explain
from headrace.pipeline.errors import StageFailed, describe, stage
from headrace.pipeline.kept_settings import with_absolute_paths
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.offline.config import RECIPES
from headrace.pipeline.recipes import load_recipe

ROOT = Path(__file__).parent.parent


def mistake(capsys, *arguments):
    """Run, expect exit code 2, and return the message."""
    try:
        code = run(list(arguments))
    except SystemExit as stop:  # the parser's own
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2, captured
    assert "Traceback" not in captured.err
    return captured.err + captured.out


def test_without_arguments_or_with_help_it_says_how_to_start(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert run(arguments) == 0
        assert "headrace train calculator" in capsys.readouterr().out


def test_recipes_lists_the_built_in_ones(capsys):
    assert run(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "calculator",
        "code",
        "frozen_lake",
        "guess_number",
        "lookup",
        "search",
    ]


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headrace ")


def test_main_exits_with_the_code():
    with pytest.raises(SystemExit) as stop:
        main(["nonsense"])
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "'trian'"),
        (["train"], "train needs a recipe"),
        (["train", "--run.steps", "3"], "train needs a recipe"),
        (["train", "calculater"], "did you mean 'calculator'"),
        (["train", "no/such.toml"], "no recipe file"),
        (["train", "calculator", "--schedule.max-mean-lagg", "0"], "--schedule.max-mean-lag"),
        (["train", "calculator", "--rollout.group-size", "1"], "group_size must be >= 2"),
        (["train", "calculator", "--schedule.max-lag", "0"], "max_lag must be >= max_mean_lag"),
        (["train", "calculator", "--rollout.max-tokens", "999"], "sampler.context_tokens"),
        (["train", "calculator", "--sampler.max-stop-ids", "0"], "max_stop_ids must be >= 1"),
        (["train", "calculator", "--run.steps", "many"], "many"),
        (["train", "calculator", "--run.seed", "-1"], "run.seed must be in 0"),
        (["train", "calculator", "--env.latency.mean-seconds", "-1"], "mean_seconds must be"),
        (["train", "calculator", "--env.name", "calculater"], "did you mean 'calculator'"),
        (["train", "calculator", "--env.name", "no_such_module:SPEC"], "can't be imported"),
        (["train", "calculator", "--prompts.path", "none.jsonl"], "none.jsonl"),
        (["train", "calculator", "--text.characters", "0123"], "text.characters"),
        (["train", "guess_number", "--sampler.max-stop-ids", "3"], "--sampler.max-stop-ids 16"),
        (["train", "guess_number", "--rollout.max-turns", "0"], "max_turns must be >= 1"),
        (["train", "calculator", "--evaluate.tasks", "100000"], "set --evaluate.tasks"),
        (["train", "calculator", "--prompts.num-tasks", "1000000"], "set --prompts.num-tasks"),
        (["recipes", "calculator"], "takes no further arguments"),
    ],
)
def test_a_mistake_is_one_message(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in mistake(capsys, *arguments)
    assert not list(tmp_path.rglob("*.json*"))


def test_a_malformed_data_file_is_named_with_its_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text('{"id": "a", "left": 100, "right": 100}\n{"id": \n')
    assert "tasks.jsonl:2" in mistake(
        capsys, "train", "calculator", "--prompts.path", "tasks.jsonl"
    )


def test_tasks_that_the_environment_cannot_use_are_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text('{"id": "sum-1", "left": 100}\n')
    text = mistake(capsys, "train", "calculator", "--prompts.path", "tasks.jsonl")
    assert "'sum-1'" in text
    assert "KeyError: 'right'" in text
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]


@pytest.mark.parametrize("split", ["train", "eval"])
def test_tasks_that_are_no_sequence_are_refused(split, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path(f"odd_{split}.py").write_text(
        "from dataclasses import replace\n"
        "from headrace.envs import load_env\n"
        "plain = load_env('calculator')\n"
        "def tasks(split, count, seed):\n"
        f"    return None if split == '{split}' else plain.tasks(split, count, seed)\n"
        "SPEC = replace(plain, tasks=tasks)\n"
    )
    text = mistake(capsys, "train", "calculator", "--env.name", f"odd_{split}:SPEC")
    assert "must be a sequence of Task, found None" in text


def test_a_warm_start_without_a_script_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = str(ROOT / "examples/reverse.toml")
    text = mistake(capsys, "train", recipe, "--warm-start.steps", "5")
    assert "set --warm-start.steps 0" in text
    assert not list(tmp_path.iterdir())


def test_the_stage_that_died_is_named_and_not_those_that_waited_for_it(capsys):
    died = StageFailed("sampler", RuntimeError("out of memory"))
    died.__cause__ = RuntimeError("out of memory")
    waited = StageFailed("learner", trio.ClosedResourceError())
    waited.__cause__ = ExceptionGroup("", [trio.ClosedResourceError()])
    for errors in ([waited, died], [died, waited]):
        assert explain(BaseExceptionGroup("", [ExceptionGroup("", errors)])) == 1
        text = capsys.readouterr().err
        assert "headrace: stage 'sampler' failed: RuntimeError: out of memory" in text
        assert "'learner'" not in text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_nobodys_code(number, capsys):
    for error in (OSError(number, os.strerror(number), "metrics.jsonl"), OSError("a bug")):
        with pytest.raises(StageFailed) as failed, stage("observe"):
            raise error
        assert explain(failed.value) == 1
        text = capsys.readouterr().err
        assert f"headrace: stage 'observe' failed: {describe(error)}" in text
        assert (len(text.splitlines()) == 1) == (error.errno == number)


def test_an_exit_of_foreign_code_is_named_with_its_stage(capsys):
    leaving = SystemExit(3)
    with pytest.raises(SystemExit), stage("groups"):
        raise leaving
    assert explain(BaseExceptionGroup("", [leaving])) == 1
    assert "headrace: SystemExit: 3 (in stage 'groups')" in capsys.readouterr().err


def test_ctrl_c_stays_ctrl_c():
    with pytest.raises(KeyboardInterrupt):
        explain(BaseExceptionGroup("", [KeyboardInterrupt()]))


def test_a_directory_that_holds_a_run_is_left_as_it_is(capsys, tmp_path):
    summary = tmp_path / "summary.json"
    summary.write_text(json.dumps({"mine": 1}))
    text = mistake(capsys, "train", "calculator", "--run.dir", str(tmp_path))
    assert "must not hold a run" in text
    assert json.loads(summary.read_text()) == {"mine": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_reader_that_has_gone_ends_the_command_quietly():
    reader = subprocess.Popen(["true"], stdin=subprocess.PIPE)
    reader.wait()
    with reader.stdin as closed:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "recipes"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_an_audit_needs_a_run_with_a_log(tmp_path, capsys):
    assert run(["audit"]) == 2
    assert run(["audit", str(tmp_path)]) == 2
    assert "there is no" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "simulate", "tune", "chat"])
def test_a_command_without_a_name_says_what_it_needs(command, capsys):
    assert run([command]) == 2
    assert f"{command} needs a" in capsys.readouterr().err
    assert run([command, "--help"]) == 0


def test_a_policy_that_is_nowhere_is_a_users_mistake(capsys):
    assert run(["train", "calculator", "--policy"]) == 2
    assert "--policy needs" in capsys.readouterr().err


def test_paths_that_resume_is_given_hold_in_any_directory(tmp_path, monkeypatch):
    RunDirectory.create(tmp_path / "run").write_config(asdict(load_recipe("guess_number")))
    (tmp_path / "moved.jsonl").write_text('{"id": 1, "secret": 3}\n')
    found = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "assemble", lambda recipe, processes: found.append(recipe))
    monkeypatch.setattr(train, "_run", lambda *_, **__: 0)
    assert run(["resume", "run", "--prompts.path", "moved.jsonl"]) == 0
    assert [recipe.prompts.path for recipe in found] == [str(tmp_path / "moved.jsonl")]


def test_every_setting_that_names_a_path_is_kept_as_an_absolute_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    for recipe in (load_recipe("guess_number"), *(kind() for kind in RECIPES.values())):
        for section, key in (
            (section, key)
            for section, settings in vars(recipe).items()
            for key in vars(settings)
            if key in ("path", "eval", "teacher") and section != "env"
        ):
            for given, kept in (("here", str(tmp_path / "here")), ("a/name", "a/name")):
                settings = replace(getattr(recipe, section), **{key: given})
                changed = with_absolute_paths(replace(recipe, **{section: settings}))
                assert changed == replace(recipe, **{section: replace(settings, **{key: kept})})
