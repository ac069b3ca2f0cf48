"""`headrace sft`, `prefer` and `distill`: runs, what they leave behind, and users' mistakes."""

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from headrace.pipeline.cli import run
from headrace.pipeline.policy import load_policy
from tests.test_cli import mistake

ROOT = Path(__file__).parent.parent
TINY = [
    *("--text.characters", "0123456789+"),
    *("--model.num-layers", "1", "--model.width", "16", "--model.num-heads", "2"),
    *("--model.num-kv-heads", "1", "--model.head-width", "8", "--model.ffn-width", "32"),
    *("--learner.row-tokens", "32", "--learner.microbatch-rows", "4"),
]
SUMS, PAIRS = (str(ROOT / "examples" / name) for name in ("sums.jsonl", "sums_pairs.jsonl"))
CONVERSATIONS = [json.loads(line) for line in Path(SUMS).read_text().splitlines()]


def write(path, tables):
    path.write_text("".join(json.dumps(table) + "\n" for table in tables))
    return str(path)


def records(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_sft_imitates_and_leaves_a_run_that_can_be_run_again(tmp_path, capsys):
    data = write(tmp_path / "data.jsonl", [*CONVERSATIONS, long_row()])
    where = tmp_path / "run"
    flags = ["--run.dir", str(where), "--run.steps", "6", "--data.eval-share", "0.2", *TINY]
    assert run(["sft", data, *flags, "--learner.learning-rate", "0.02"]) == 0
    assert "headrace chat" in capsys.readouterr().out
    names = sorted(path.name for path in where.iterdir())
    assert names == ["checkpoints", "config.toml", "metrics.jsonl", "policy", "summary.json"]
    summary = json.loads((where / "summary.json").read_text())
    assert summary["updates"] == 6
    assert summary["rows"] + summary["rows_skipped"] == 6 * 32
    assert summary["loss_last"] < summary["loss_first"]
    assert summary["compilations_after_warmup"] == 0
    before, after = (summary["evaluations"][when] for when in ("before", "after"))
    assert after["loss"] < before["loss"]
    assert after.keys() == {"loss", "token_accuracy", "rows_skipped"}
    steps = [record["step"] for record in records(where) if "loss" in record]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert load_policy(where / "policy").text.characters == "0123456789+"
    assert tomllib.loads((where / "config.toml").read_text())["data"]["path"] == data


def long_row():
    return {"prompt": "1+" * 40 + "1", "completion": "41"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sft"], "sft needs a file of conversations"),
        (
            ["sft", "none.jsonl"],
            "none.jsonl: cannot read the rows: No such file or directory; give",
        ),
        (["sft", "data.csv"], "must end with one of .jsonl, .parquet, .array_record"),
        (["sft", "good.jsonl", "--learner.epochs", "2"], "set --data.epochs"),
        (["sft", "good.jsonl", "--data.epochz", "2"], "--data.epoch"),
        (["sft", "good.jsonl", "--policy"], "--policy needs a folder"),
        (["sft", "good.jsonl", "--teacher", "x"], "--teacher is for headrace distill"),
        (["sft", "good.jsonl", "--policy", "no/such"], "no folder"),
        (["sft", "bad.jsonl"], "bad.jsonl:2: a row needs"),
        (["sft", "good.jsonl", "--text.characters", "01"], "good.jsonl:1: "),
        (["sft", "good.jsonl", "--learner.row-tokens", "4"], "set --learner.row-tokens"),
        (["sft", "long.jsonl", "--data.too-long", "error"], "long.jsonl:1: 523 tokens don't fit"),
        (["sft", "tools.jsonl"], "tools.jsonl:1: an alphabet has no words for tools"),
        (["prefer", "good.jsonl"], "good.jsonl:1: a row needs"),
        (["prefer", "good.jsonl", "--preference.loss", "dpoo"], "dpoo"),
        (["prefer", "good.jsonl", "--preference.beta", "0"], "preference.beta must be > 0"),
        (["prefer", "good.jsonl", "--learner.microbatch-rows", "1"], "must be >= 2"),
        (["distill", "good.jsonl"], "set --teacher"),
        (["sft", "no.toml"], "can't read the settings no.toml: No such file or directory; give"),
        (["sft", "strange.toml"], "strange.toml: unknown key 'lora.rnk' (did you mean"),
        (["sft", "empty.toml"], "set --data.path"),
    ],
)
def test_a_mistake_is_one_message(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "good.jsonl", CONVERSATIONS[:3])
    write(tmp_path / "bad.jsonl", [CONVERSATIONS[0], {"text": "1"}])
    write(tmp_path / "long.jsonl", [{"prompt": "1" * 519, "completion": "1"}])
    write(tmp_path / "tools.jsonl", [{**CONVERSATIONS[0], "tools": [{"name": "f"}]}])
    (tmp_path / "strange.toml").write_text("[lora]\nrnk = 3\n")
    (tmp_path / "empty.toml").write_text("")
    assert message in mistake(capsys, *arguments)
    assert not (tmp_path / "runs").exists()


def test_help_shows_a_commands_settings(capsys, tmp_path):
    for command, setting in (("sft", "data.eval-share"), ("prefer", "preference.beta")):
        with pytest.raises(SystemExit) as stop:
            run([command, str(tmp_path / "data.jsonl"), "--help"])
        assert stop.value.code == 0
        assert setting in capsys.readouterr().out


@pytest.fixture(scope="module")
def imitated(tmp_path_factory):
    """A run that has learnt sums a little."""
    folder = tmp_path_factory.mktemp("imitated")
    flags = ["--run.dir", str(folder / "run"), "--run.steps", "60", *TINY]
    assert run(["sft", SUMS, *flags, "--learner.learning-rate", "0.01"]) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "flags"),
    [("dpo", []), ("dpo", ["--lora.rank", "4"]), ("ipo", []), ("orpo", []), ("kto", [])],
)
def test_preferences_are_learnt(imitated, tmp_path, loss, flags):
    where = tmp_path / "run"
    given = ["--policy", str(imitated / "policy"), "--preference.loss", loss, *TINY, *flags]
    given += ["--run.dir", str(where), "--run.steps", "30", "--learner.learning-rate", "0.003"]
    assert run(["prefer", PAIRS, *given]) == 0
    first, *_, last = records(where)
    assert last["loss"] < first["loss"]
    assert last["accuracy"] > max(0.55, first["accuracy"] - 0.01)
    before, after = load_policy(imitated / "policy").params, load_policy(where / "policy").params
    moved = np.abs(before["layers"]["query"] - after["layers"]["query"]).max()
    assert moved > 0


@pytest.mark.slow
@pytest.mark.parametrize("divergence", ["forward", "reverse", "jensen_shannon"])
def test_a_student_follows_its_teacher(imitated, tmp_path, divergence):
    where = tmp_path / "run"
    given = ["--teacher", str(imitated / "policy"), "--distill.divergence", divergence, *TINY]
    given += ["--run.dir", str(where), "--run.steps", "40", "--learner.learning-rate", "0.01"]
    assert run(["distill", SUMS, *given, "--distill.top-k", "5"]) == 0
    first, *_, last = records(where)
    assert last["loss"] < 0.5 * first["loss"]


@pytest.mark.slow
def test_the_same_settings_give_the_same_policy_from_their_config_file(imitated, tmp_path):
    first, again = tmp_path / "first", tmp_path / "again"
    given = ["--policy", str(imitated / "policy"), "--lora.rank", "2", "--data.epochs", "0.5"]
    assert run(["sft", SUMS, *given, *TINY, "--run.dir", str(first)]) == 0
    assert run(["sft", str(first / "config.toml"), "--run.dir", str(again)]) == 0
    one, other = (json.loads((run_ / "summary.json").read_text()) for run_ in (first, again))
    assert one["params_sha256"] == other["params_sha256"]
    assert one["rows"] == 50
    assert one["compilations_after_warmup"] == 0


@pytest.mark.slow
def test_a_row_that_is_bad_ends_the_run_and_says_where(tmp_path, capsys):
    rows = [*CONVERSATIONS, {"messages": [{"role": "user", "content": "1"}]}]
    data = write(tmp_path / "data.jsonl", rows)
    where = tmp_path / "run"
    text = mistake(capsys, "sft", data, "--run.dir", str(where), "--data.epochs", "2", *TINY)
    assert "data.jsonl:101: no message of the assistant" in text
    assert json.loads((where / "summary.json").read_text())["updates"] < 7
    load_policy(where / "policy")  # what was learnt until then
    assert run(["resume", str(where), "--data.unusable", "skip"]) == 0
    summary = json.loads((where / "summary.json").read_text())
    assert (summary["updates"], summary["rows"], summary["rows_skipped"]) == (7, 200, 2)


@pytest.mark.slow
def test_a_signal_ends_a_run_after_the_update_and_saves_what_was_learnt(tmp_path):
    where = tmp_path / "run"
    command = [sys.executable, "-m", "headrace", "sft", SUMS, "--run.dir", str(where), *TINY]
    process = subprocess.Popen(
        [*command, "--run.steps", "100000"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        for line in process.stdout:
            if line.startswith("step"):
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 128 + signal.SIGTERM
    assert "what was done so far is in" in rest
    summary = json.loads((where / "summary.json").read_text())
    assert summary["interrupted_by"] == "SIGTERM"
    assert 1 <= summary["updates"] < 100000
    load_policy(where / "policy")
