"""Runs without rollouts: a stage that hangs, fails or ends early ends the run with its name."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import trio

from headrace.pipeline.checkpoint import Checkpoints
from headrace.pipeline.commands.messages import explain
from headrace.pipeline.errors import ConfigError, PipelineStalled, StageFailed, leaves
from headrace.pipeline.observe.run_directory import RunDirectory
from headrace.pipeline.offline import replica
from headrace.pipeline.offline.assemble import assemble_offline
from headrace.pipeline.processes import Processes
from headrace.pipeline.run_config import CheckpointConfig
from headrace.pipeline.train_offline import OfflineJob
from headrace.pipeline.waits import DeadlineMissed
from tests.controller.schedules import escape
from tests.test_offline_commands import ROOT, SUMS, TINY
from tests.test_resume import RECIPE, Curious

SOON = 0.05
SETTINGS = {  # the stage that something goes wrong in, and the deadline that it has
    "prepare": ("learner", "waits.prepare_deadline_seconds"),
    "rows": ("data", "waits.batch_deadline_seconds"),
    "update": ("learner", "waits.update_deadline_seconds"),
    "evaluation": ("evaluate", "evaluate.deadline_seconds"),
    "checkpoint": ("checkpoint", "waits.save_deadline_seconds"),
    "policy": ("learner", "waits.save_deadline_seconds"),
}
WAITS_SETTINGS = {setting for _, setting in SETTINGS.values() if setting.startswith("waits")}
every_call = pytest.mark.parametrize("call", SETTINGS)


class Foreign(BaseException):
    """What a library may raise that isn't an `Exception`."""


class Faulty:
    """A learner without a model, of which one kind of call does something else.

    Attributes:
      calls: how often each kind was called.
    """

    def __init__(self, call, does, *, at=1):
        self._call, self._does, self._at = call, does, at
        self.calls = dict.fromkeys(SETTINGS, 0)
        self.params = self.state = {"weight": np.zeros(2)}
        self.busy_seconds = 0.0

    def does(self, call, result):
        self.calls[call] += 1
        if call == self._call and self.calls[call] == self._at:
            return self._does()
        return result

    def compile(self):
        self.does("prepare", None)

    def fixed_sha256(self):
        return ""

    def update(self, batch, mismatched):
        return self.does("update", {"loss": 1.0, "tokens": 8.0})

    def evaluate(self, batches):
        return self.does("evaluation", {"loss": float(len(list(batches)))})

    def save(self, step, state, record):
        self.does("checkpoint", None)

    def finish(self, params):
        return self.does("policy", None)


@pytest.fixture(scope="module")
def parts():
    return assemble_offline(RECIPE)


@pytest.fixture
def hang():
    """What hangs until the test is over."""
    released = threading.Event()
    yield released.wait
    released.set()


@pytest.fixture
def job_of(parts, tmp_path, monkeypatch):
    """Make a job of a recipe, with a faulty learner."""

    def make(faulty, recipe=RECIPE, view=None):
        def pack(examples):
            packed = parts.pack(examples)
            is_read = threading.current_thread().name == "headrace-reader"
            return faulty.does("rows", packed) if is_read else packed

        monkeypatch.setattr(Checkpoints, "save", faulty.save)
        monkeypatch.setattr(replica, "make_learner", lambda *_: (faulty, faulty.finish))
        monkeypatch.setattr(replica, "save_policy", lambda *_, **__: None)
        directory = RunDirectory.create(tmp_path / "run")
        own = replace(parts, pack=pack, processes=Processes())
        return OfflineJob(recipe, own, directory, view or Curious())

    return make


def with_deadline(recipe, setting, seconds):
    section, name = setting.split(".")
    return replace(recipe, **{section: replace(getattr(recipe, section), **{name: seconds})})


# Threads that hang are soon given up; so may be one that is only slow, on a busy machine.
IMPATIENT = with_deadline(RECIPE, "waits.exit_deadline_seconds", 0.5)


def run(job):
    trio.run(job.run, time.monotonic())


def updates_of(job):
    return json.loads((job._directory.path / "summary.json").read_text())["updates"]


@every_call
def test_a_stage_that_hangs_ends_the_run_with_its_name_and_the_setting(call, job_of, hang, capsys):
    stage, setting = SETTINGS[call]
    faulty = Faulty(call, hang)
    recipe = with_deadline(IMPATIENT, setting, SOON)
    if call == "policy":  # nothing else has its deadline
        recipe = replace(recipe, checkpoint=CheckpointConfig(every=0))
    job = job_of(faulty, recipe)
    with pytest.raises(ExceptionGroup) as caught:
        run(job)
    failure, *others = leaves(caught.value)
    assert (type(failure), failure.stage) == (StageFailed, stage)
    flag = f"--{setting.replace('_', '-')}"
    assert isinstance(failure.__cause__, DeadlineMissed)
    assert str(failure.__cause__).endswith(f"took more than 0.05 s; mend it, or raise {flag}")
    assert {type(other) for other in others} == {PipelineStalled}
    assert re.search(r"thread is still in '.*' 0.5 s after .* abandoned", str(others[0]))
    assert job.left_a_thread
    assert explain(caught.value) == 1
    assert f"stage {stage!r} failed: DeadlineMissed" in capsys.readouterr().err
    assert updates_of(job) == faulty.calls["update"] - (call == "update")


@every_call
@pytest.mark.parametrize("kind", [OSError, Foreign])
def test_a_stage_that_fails_ends_the_run_with_its_name(call, kind, job_of, capsys):
    def fail():
        raise kind("planned")

    job = job_of(Faulty(call, fail))
    with pytest.raises(BaseExceptionGroup) as caught:
        run(job)
    assert explain(caught.value) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert f"{kind.__name__}: planned" in last
    assert f"stage {SETTINGS[call][0]!r}" in last
    assert not job.left_a_thread
    updates_of(job)  # the summary is there


@pytest.mark.parametrize("call", ["rows", "update", "evaluation"])
def test_a_stage_that_gives_nothing_is_named(call, job_of):
    with pytest.raises(ExceptionGroup) as caught:
        run(job_of(Faulty(call, lambda: None)))
    (failure,) = leaves(caught.value)
    assert failure.stage == SETTINGS[call][0]


async def returns(job, send):
    send.close()


async def escapes(job, send):
    with send:
        await escape()


@pytest.mark.parametrize("read", [returns, escapes])
def test_a_reader_that_ends_early_is_no_end_of_the_run(job_of, monkeypatch, read):
    monkeypatch.setattr(OfflineJob, "_read", read)
    with pytest.raises(ExceptionGroup) as caught:
        run(job_of(Faulty("", None)))
    (failure,) = leaves(caught.value)
    assert (failure.stage, type(failure.__cause__)) == ("data", PipelineStalled)
    assert str(failure.__cause__) == "the rows ended after 0 of 5 updates"


def test_what_is_wrong_with_a_row_waits_for_its_turn(job_of):
    """The updates before it are taken, and saved: what the next one would read is its matter."""

    def bad():
        raise ConfigError("data.jsonl:9: no message")

    faulty = Faulty("rows", bad, at=4)
    job = job_of(faulty, replace(RECIPE, checkpoint=replace(RECIPE.checkpoint, every=100)))
    with pytest.RaisesGroup(ConfigError, flatten_subgroups=True):
        run(job)
    assert updates_of(job) == 3
    assert (faulty.calls["checkpoint"], faulty.calls["policy"]) == (1, 1)


def test_a_run_in_which_nothing_moves_ends_and_says_who_waits(job_of, hang):
    stalling = with_deadline(IMPATIENT, "waits.stall_seconds", 1.0)
    with pytest.raises(ExceptionGroup) as caught:
        run(job_of(Faulty("update", hang), stalling))
    failure = next(iter(leaves(caught.value)))
    assert failure.stage == "watchdog"
    first, line = str(failure.__cause__).split("\n  ")
    assert first == "nothing has moved for 1 s. Who waits for what:"
    assert re.fullmatch(r"learner: update 1, for [\d.]+ s of at most 1800 s", line)


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (RECIPE, 3660.0),
        (with_deadline(RECIPE, "waits.update_deadline_seconds", 4000.0), 4060.0),
        (with_deadline(RECIPE, "waits.save_deadline_seconds", 5000.0), 5060.0),
        (with_deadline(RECIPE, "evaluate.deadline_seconds", 6000.0), 6060.0),
        (with_deadline(RECIPE, "waits.batch_deadline_seconds", 7000.0), 7060.0),
        (with_deadline(RECIPE, "waits.stall_seconds", 1.0), 1.0),
    ],
)
def test_by_default_the_watchdog_waits_for_the_longest_deadline_and_a_minute(settings, seconds):
    assert settings.stall_after_seconds == seconds


@pytest.mark.parametrize("setting", ["evaluate.deadline_seconds", *sorted(WAITS_SETTINGS)])
def test_impossible_deadlines_are_refused(setting):
    with pytest.raises(ConfigError, match=rf"{setting} must be >.* got -1.0; set --"):
        with_deadline(RECIPE, setting, -1.0)


def stop():
    signal.raise_signal(signal.SIGTERM)


def test_a_signal_ends_a_run_whose_next_rows_are_there(job_of):
    """Whoever waits to hand rows over must not be told that nobody takes them any more."""

    def slow():
        stop()
        time.sleep(0.3)  # the reader has read, and waits
        return {"loss": 1.0, "tokens": 8.0}

    faulty = Faulty("update", slow, at=2)
    job = job_of(faulty)
    run(job)
    assert (job.interrupted_by, updates_of(job)) == (signal.SIGTERM, 2)
    assert (faulty.calls["checkpoint"], faulty.calls["policy"]) == (1, 1)


def test_a_signal_ends_a_run_that_waits_for_rows(job_of, hang):
    def stop_and_hang():
        stop()
        hang()

    faulty = Faulty("rows", stop_and_hang, at=3)
    job = job_of(faulty, IMPATIENT)
    with pytest.RaisesGroup(PipelineStalled):  # the reader that was given up
        run(job)
    assert (job.interrupted_by, updates_of(job)) == (signal.SIGTERM, 2)
    assert (faulty.calls["checkpoint"], faulty.calls["policy"]) == (1, 1)


ENDLESS = """
    import sys
    import jax
    from headrace.pipeline.cli import main
    from headrace.pipeline.offline.learner import OfflineLearner

    def endless(learner, *batch):
        jax.lax.while_loop(lambda n: n >= 0, lambda n: (n + 1) % 2, 0).block_until_ready()

    OfflineLearner.update = endless
    main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_device_that_hangs_ends_the_process(tmp_path):
    """No cancellation reaches a program on a device, nor does the interpreter's end."""
    process = subprocess.run(
        [
            sys.executable, "-c", textwrap.dedent(ENDLESS), "sft", SUMS, *TINY,
            "--run.dir", str(tmp_path / "run"), "--waits.update-deadline-seconds", "0.5",
            "--waits.exit-deadline-seconds", "1",
        ],
        capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.returncode == 1, process.stderr
    assert process.stderr == (
        "headrace: stage 'learner' failed: DeadlineMissed: update 1 took more than 0.5 s; "
        "mend it, or raise --waits.update-deadline-seconds\n"
        "headrace: there is no checkpoint yet; mend that, then begin again: headrace resume "
        f"{tmp_path / 'run'}\n"
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] == 0
