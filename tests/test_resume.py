"""Law 17 without rollouts: of kills and resumes nothing is to be seen at the end."""

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from headrace.pipeline.cli import run
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.learner.optimizer import LearnerConfig
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.offline.assemble import assemble_offline
from headrace.pipeline.offline.config import DataConfig, OfflineEvaluateConfig, SftRecipe
from headrace.pipeline.offline.learner import OfflineLearner
from headrace.pipeline.policy import load_policy, save_policy
from headrace.pipeline.policy.config import PolicyConfig
from headrace.pipeline.run_config import CheckpointConfig, CommonRunConfig
from headrace.pipeline.text.renderer import TextConfig
from headrace.pipeline.train_offline import OfflineJob
from tests.test_cli import mistake
from tests.test_offline_commands import CONVERSATIONS, PAIRS, ROOT, SUMS, TINY, records, write

RECIPE = SftRecipe(
    run=CommonRunConfig(name="sft", steps=5),
    data=DataConfig(path=SUMS, eval_share=0.1),
    text=TextConfig(characters="0123456789+"),
    model=ModelConfig(
        num_layers=1, width=16, num_heads=2, num_kv_heads=1, head_width=8, ffn_width=32
    ),
    learner=LearnerConfig(learning_rate=0.01, microbatch_rows=4, row_tokens=32),
    evaluate=OfflineEvaluateConfig(every=2, rows=8),
    checkpoint=CheckpointConfig(every=2),
)


class Camera:
    """A view that copies the run directory after each update: what a kill would leave."""

    def __init__(self, where: Path, album: Path) -> None:
        self._where, self._album = where, album

    def phase(self, text, done=None, total=None): ...

    def step(self, record):
        shutil.copytree(self._where, self._album / str(record["step"]))

    def note(self, text): ...

    def refresh(self): ...

    def close(self): ...


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    """A run that was never killed, `whole`, and what it was after each update."""
    album = tmp_path_factory.mktemp("album")
    where = album / "whole"
    recipe = replace(RECIPE, run=replace(RECIPE.run, dir=str(where)))
    directory = RunDirectory.create_for(recipe.run.dir, recipe.run.name)
    job = OfflineJob(recipe, assemble_offline(recipe), directory, Camera(where, album))
    trio.run(job.run, time.monotonic())
    return album


def outcome(folder: Path) -> tuple:
    """All that a run leaves which doesn't depend on time or on how often it was killed."""
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("wall_seconds", "peak_rss_bytes", "resumed_from", "interrupted_by"):
        del summary[name]
    lines = [{**line, "tokens_per_second": 0} for line in records(folder)]
    return summary, lines


@pytest.mark.parametrize("killed_after", [1, 3, 5])
def test_law_17_a_run_that_was_killed_ends_as_one_that_was_not(album, tmp_path, killed_after):
    where = tmp_path / "run"
    shutil.copytree(album / str(killed_after), where)
    (where / ".policy-x" / "policy").mkdir(parents=True)  # of a kill while it was saved
    assert run(["resume", str(where)]) == 0
    assert not list(where.glob(".policy-*"))
    assert outcome(where) == outcome(album / "whole")
    checkpoint = killed_after // 2 * 2
    resumed_from = json.loads((where / "summary.json").read_text())["resumed_from"]
    assert resumed_from == ([checkpoint] if killed_after > 1 else [])
    assert [path.name for path in (where / "checkpoints").iterdir()] == ["5"]
    load_policy(where)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learner.learning-rate", "1"], "learner.learning_rate was 0.01, is 1.0; leave them"),
        (["--run.steps", "3"], "run.steps must be >= 4, the updates that were taken, got 3"),
        (["--run.dir", "x"], "run.dir must be left out"),
        (["--data.eval-share", "0"], "data.eval_share was 0.1, is 0.0"),
        (["--data.path", PAIRS], "isn't the file that this run began with"),
    ],
)
def test_what_would_teach_something_else_is_refused(album, tmp_path, capsys, flags, message):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    before = sorted(where.rglob("*"))
    assert message in mistake(capsys, "resume", str(where), *flags)
    assert sorted(where.rglob("*")) == before


def test_what_is_no_run_to_go_on_with_is_refused(album, tmp_path, capsys):
    assert "resume needs a run directory" in mistake(capsys, "resume")
    assert "holds no run" in mistake(capsys, "resume", str(tmp_path))
    with RunDirectory.reopen(album / "5").held():
        assert "another process is at work" in mistake(capsys, "resume", str(album / "5"))


def test_a_damaged_checkpoint_is_named(album, tmp_path, capsys):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    (where / "checkpoints" / "4" / "record" / "metadata").unlink()
    message = mistake(capsys, "resume", str(where))
    assert "checkpoints/4 can't be read" in message
    assert "there is no older one; a new run can begin with" in message


@pytest.mark.parametrize(
    "change", [{"progress": None}, {"command": "x"}, {"settings": []}, {"metrics": 1}]
)
def test_a_record_that_is_not_whole_is_named_with_its_checkpoint(album, tmp_path, capsys, change):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    record = where / "checkpoints" / "4" / "record" / "metadata"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    message = mistake(capsys, "resume", str(where))
    assert "checkpoints/4 can't be used: its record is not whole" in message
    assert "a new run can begin with the run's config.toml" in message


def test_what_is_left_of_a_checkpoint_is_named_by_us_alone(album, tmp_path, capsys, caplog):
    where = tmp_path / "run"
    shutil.copytree(album / "5", where)
    (where / "checkpoints" / "9").mkdir()
    message = mistake(capsys, "resume", str(where))
    assert "checkpoints/9 can't be read: Item" in message
    assert message.endswith("move it away to go on from the one after 4 updates\n")
    assert not caplog.records


@pytest.mark.parametrize("text", ["", "[run]"])
def test_settings_of_no_run_are_refused(tmp_path, capsys, text):
    (tmp_path / "config.toml").write_text(text)
    assert "must have the settings of a run" in mistake(capsys, "resume", str(tmp_path))


@pytest.mark.slow
def test_a_run_goes_on_in_another_working_directory(album, tmp_path, monkeypatch):
    shutil.copytree(album / "whole" / "policy", tmp_path / "policy")
    shutil.copy(SUMS, tmp_path / "sums.jsonl")
    where, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    flags = ["--run.dir", "run", "--run.steps", "1", "--lora.rank", "2", *TINY]
    assert run(["sft", "sums.jsonl", "--policy", "policy", *flags]) == 0
    hashed = []

    def count(learner):
        hashed.append(1)
        return whole_hash(learner)

    whole_hash = OfflineLearner.fixed_sha256
    monkeypatch.setattr(OfflineLearner, "fixed_sha256", count)
    monkeypatch.chdir(elsewhere)
    assert run(["resume", str(where), "--run.steps", "2"]) == 0
    assert json.loads((where / "summary.json").read_text())["resumed_from"] == [1]
    assert len(hashed) == 1


class Curious(Camera):
    """A view that asks once who waits for what, and keeps what it is told."""

    def __init__(self) -> None:
        self.notes = []

    def step(self, record):
        if record["step"] == 2:
            signal.raise_signal(signal.SIGUSR1)

    def note(self, text):
        self.notes.append(text)


def run_updates(recipe, where, view, *, steps=2):
    recipe = replace(recipe, run=replace(recipe.run, steps=steps))
    job = OfflineJob(recipe, assemble_offline(recipe), RunDirectory.create(where), view)
    trio.run(job.run, time.monotonic())
    return view.notes


def test_sigusr1_tells_who_waits_for_what(tmp_path):
    notes = run_updates(RECIPE, tmp_path / "run", Curious())
    (told,) = [note for note in notes if note.startswith("SIGUSR1")]
    assert "evaluate: held-out rows after 2 updates, for " in told


def test_updates_that_teach_nothing_are_told_of(album, tmp_path):
    policy, where = load_policy(album / "whole"), tmp_path / "run"
    policy.params["final_norm"] *= float("nan")
    save_policy(policy, tmp_path / "policy")
    recipe = replace(RECIPE, policy=PolicyConfig(str(tmp_path / "policy")))
    notes = run_updates(recipe, where, Curious())
    assert [note for note in notes if "the gradient is not finite" in note] == notes[1:2]
    assert [line["alarms"] for line in records(where) if "alarms" in line] == [1, 1]


def test_law_17_where_a_row_ended_a_run_while_the_device_learnt(tmp_path, monkeypatch):
    update = OfflineLearner.update

    def slowly(learner, *batch):
        time.sleep(0.2)  # the reader comes to the row meanwhile
        return update(learner, *batch)

    monkeypatch.setattr(OfflineLearner, "update", slowly)
    data = write(tmp_path / "data.jsonl", [*CONVERSATIONS, {"messages": []}])
    data = DataConfig(data, shuffle=False)
    recipe = replace(RECIPE, data=data, checkpoint=CheckpointConfig(every=100))  # only at its end
    skipping = replace(recipe, data=replace(recipe.data, unusable="skip"))
    run_updates(skipping, tmp_path / "whole", Curious(), steps=5)
    with pytest.RaisesGroup(ConfigError, flatten_subgroups=True):
        run_updates(recipe, tmp_path / "ended", Curious(), steps=5)
    assert run(["resume", str(tmp_path / "ended"), "--data.unusable", "skip"]) == 0
    assert outcome(tmp_path / "ended") == outcome(tmp_path / "whole")


def test_a_run_that_ended_without_checkpoints_is_not_begun_again(tmp_path, capsys):
    where, view = tmp_path / "run", Curious()
    data = write(tmp_path / "data.jsonl", [*CONVERSATIONS, {"messages": []}])
    recipe = replace(RECIPE, data=DataConfig(data, shuffle=False), checkpoint=CheckpointConfig(0))
    with pytest.RaisesGroup(
        pytest.RaisesExc(ConfigError, match="jsonl:101"), flatten_subgroups=True
    ):
        run_updates(recipe, where, view, steps=5)
    assert not [note for note in view.notes if "resume" in note]
    # The update that the device was in when the fourth batch could not be read counts.
    assert json.loads((where / "summary.json").read_text())["updates"] == 3
    message = mistake(capsys, "resume", str(where), "--data.unusable", "skip")
    assert "has a policy but no checkpoint to go on from" in message


@pytest.mark.parametrize("ends", ["error", "SIGTERM"])
def test_what_an_end_left_stays_until_another_end(album, tmp_path, monkeypatch, capsys, ends):
    stopped, stop = threading.Event(), OfflineJob._stop

    def note_stop(job, number):
        stop(job, number)
        stopped.set()

    def end(*_):
        if ends == "error":
            raise RuntimeError("a chip is lost")
        signal.raise_signal(signal.SIGTERM)
        stopped.wait()

    where = tmp_path / "run"
    shutil.copytree(album / "whole", where)
    left = {path: path.read_bytes() for path in [where / "summary.json", *where.glob("policy/*")]}
    with monkeypatch.context() as patch:
        patch.setattr(OfflineJob, "_stop", note_stop)
        patch.setattr(OfflineLearner, "evaluate", end)  # after the sixth update
        assert run(["resume", str(where), "--run.steps", "7"]) == (1 if ends == "error" else 143)
    assert {path: path.read_bytes() for path in left} == left
    if ends == "error":
        text = "what was learnt until update 5 is saved; mend that, then go on: headrace resume"
        assert text in capsys.readouterr().err
    assert run(["resume", str(where)]) == 0
    summary = json.loads((where / "summary.json").read_text())
    assert (summary["updates"], summary["finished"]) == (7, True)
    assert (where / "policy" / "model.safetensors").read_bytes() not in left.values()


@pytest.mark.slow
def test_a_base_that_has_changed_is_refused(album, tmp_path, capsys):
    where, policy = tmp_path / "run", tmp_path / "policy"
    shutil.copytree(album / "whole" / "policy", policy)
    flags = ["--run.dir", str(where), "--run.steps", "2", "--lora.rank", "2", *TINY]
    assert run(["sft", SUMS, "--policy", str(policy), *flags]) == 0
    shutil.rmtree(policy)
    changed = load_policy(album / "whole")
    changed.params["final_norm"] += 1.0
    save_policy(changed, policy)
    message = mistake(capsys, "resume", str(where), "--run.steps", "4")
    assert "policy.path or distill.teacher holds other weights" in message


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sft", "prefer", "lora"])
def test_law_17_with_real_kills_at_random_times(tmp_path, kind):
    command, data = ("prefer", PAIRS) if kind == "prefer" else ("sft", SUMS)
    settings = ["--run.steps", "40", "--checkpoint.every", "7", "--data.batch-rows", "8", *TINY]
    settings += ["--lora.rank", "2"] if kind == "lora" else []
    headrace = [sys.executable, "-m", "headrace"]

    def start(*arguments):
        return subprocess.Popen(
            [*headrace, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    with start(command, data, "--run.dir", str(tmp_path / "whole"), *settings) as process:
        process.communicate()
    where, rng = tmp_path / "killed", random.Random(kind)
    process = start(command, data, "--run.dir", str(where), *settings)
    for stop in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        with process:
            steps = (line for line in process.stdout if line.startswith("step"))
            for _ in range(rng.randint(1, 12)):
                next(steps)
            time.sleep(rng.random() * 0.1)
            process.send_signal(stop)
            process.stdout.read()
        process = start("resume", str(where))
    with process:
        process.communicate()
    assert process.returncode == 0
    assert outcome(where) == outcome(tmp_path / "whole")
