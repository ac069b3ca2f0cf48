"""`headrace train` in several processes: the run of one process that has as many devices."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline.processes.channel import GONE
from tests.processes.launch import PROJECT, free_port

SECONDS = 400
# Pure reinforcement learning in lockstep, small enough for processes that share two cores.
LOCKSTEP = shlex.split("""
    --run.steps 4 --schedule.deterministic --schedule.max-mean-lag 1 --schedule.batch-groups 4
    --rollout.group-size 4 --sampler.rows 16 --sampler.prefill-lanes 16 --learner.microbatch-rows 8
    --evaluate.tasks 2 --env.latency.kind lognormal --env.latency.mean-seconds 0.01
    --checkpoint.every 2 --mesh.fsdp 2 --mesh.tensor 2 --run.view plain
""")


def headrace(*arguments: str, devices: int, said: Path) -> subprocess.Popen[bytes]:
    """Start the command; what it says goes to a file."""
    own = {
        "PYTHONPATH": str(PROJECT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
    }
    with said.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            env=os.environ | own,
            cwd=said.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def run_together(
    arguments: Sequence[str], folder: Path, *, processes: int = 2, own: Sequence[str] = ("",) * 2
) -> list[int]:
    """Run a command in processes that have four devices together; give their exit codes.

    Args:
      own: settings of each process.
    """
    folder.mkdir(exist_ok=True)
    mesh = ["--mesh.coordinator", "None"]
    if processes > 1:
        mesh = ["--mesh.coordinator", f"127.0.0.1:{free_port()}", "--mesh.processes", "2"]
    running = [
        headrace(
            *(*arguments, *mesh, "--mesh.process", str(index), *own[index].split()),
            devices=4 // processes,
            said=folder / f"said-{index}",
        )
        for index in range(processes)
    ]
    try:
        return [one.wait(SECONDS) for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()


def ended(folder: Path) -> tuple[str, list[Any]]:
    """Give the hash of a run's last parameters, and all that was said in it."""
    summary = json.loads((folder / "run" / "summary.json").read_text())
    lines = (folder / "run" / "trajectories.jsonl").read_text().splitlines()
    sha256: str = summary["params_sha256"]
    assert summary["compilations_after_warmup"] == 0
    return sha256, [json.loads(line)["messages"] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS)
def test_two_processes_do_what_one_does_bit_for_bit_and_go_on_as_one(tmp_path: Path) -> None:
    train = ["train", "guess_number", "--run.dir", "run", *LOCKSTEP, "--env.latency.seed"]
    one, two, first = tmp_path / "one", tmp_path / "two", tmp_path / "first"
    assert run_together([*train, "1"], one, processes=1) == [0]
    assert run_together([*train, "2"], two) == [0, 0]
    assert ended(two) == ended(one)

    assert run_together(
        [*train, "3", "--learner.decay-share", "0", "--run.steps", "2"], first
    ) == [0, 0]
    assert run_together(["resume", "run", "--run.steps", "4"], first, processes=1) == [0]
    whole = tmp_path / "whole"
    assert run_together([*train, "4", "--learner.decay-share", "0"], whole) == [0, 0]
    assert ended(first) == ended(whole)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_processes_that_were_not_started_alike_are_refused(tmp_path: Path) -> None:
    train, own = ["train", "guess_number", *LOCKSTEP], ["", "--learner.epochs 1"]
    first, second = run_together(train, tmp_path, own=own)
    assert (first != 0, second) == (True, 2)
    said = (tmp_path / "said-1").read_text()
    assert "process 1 must be as process 0, but learner.epochs is 2 there and 1 here" in said


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_ends_the_other_which_says_so(
    killed: int, tmp_path: Path
) -> None:
    mesh = ["--mesh.coordinator", f"127.0.0.1:{free_port()}", "--mesh.processes", "2"]
    train = ["train", "guess_number", *LOCKSTEP, *mesh, "--run.steps", "1000", "--run.dir", "run"]
    running = [
        headrace(*train, "--mesh.process", str(index), devices=2, said=tmp_path / f"said-{index}")
        for index in range(2)
    ]
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text().count("grad_norm") > 2):
            assert [one.poll() for one in running] == [None, None]
            time.sleep(0.1)
        running[killed].kill()
        code = running[1 - killed].wait(60)
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert code != 0
    said = (tmp_path / f"said-{1 - killed}").read_text()
    if not killed:
        # JAX's own client, which aborts, may be the first to notice.
        assert GONE in said or "JAX distributed service detected fatal errors" in said
    else:
        assert "stage 'process 1' failed" in said
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["finished"] is False
