"""`headrace sft` in several processes: the run of one process that has as many devices."""

import json
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes.launch import PROJECT, free_port
from tests.processes.test_train import SECONDS, headrace, run_together

SFT = shlex.split(f"""
    sft {PROJECT / "examples" / "sums.jsonl"} --run.dir run --data.eval-share 0.1
    --learner.microbatch-rows 4 --learner.row-tokens 64 --learner.adam-epsilon 1e-2
    --mesh.fsdp 2 --mesh.tensor 2 --text.characters 0123456789+
""")
PREFER = ["prefer", str(PROJECT / "examples" / "sums_pairs.jsonl"), *SFT[2:]]


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return found


def same(one: Path, other: Path) -> None:
    """Check that two runs ended alike, bit for bit."""
    left, right = summary(one), summary(other)
    for name in ("updates", "params_sha256", "evaluations", "rows", "tokens", "interrupted_by"):
        assert left[name] == right[name], name
    policies = [folder / "run" / "policy" for folder in (one, other)]
    files = [{each.name: each.read_bytes() for each in it.iterdir()} for it in policies]
    assert files[0] == files[1]
    assert left["compilations_after_warmup"] == right["compilations_after_warmup"] == 0


@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("command", [SFT, [*PREFER, "--preference.loss", "kto"]])
def test_two_processes_learn_what_one_does_bit_for_bit(command: list[str], tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    arguments = [*command, "--run.steps", "3", "--evaluate.every", "2", "--checkpoint.every", "0"]
    assert run_together(arguments, one, processes=1) == [0]
    assert run_together(arguments, two) == [0, 0]
    same(one, two)
    assert {"before", "after"} == summary(two)["evaluations"].keys()


def wait_for(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < limit, "it took too long"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(4 * SECONDS)
def test_a_signal_to_process_0_ends_both_in_order_and_both_go_on(tmp_path: Path) -> None:
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    sft = [*SFT, "--run.steps", "60", "--checkpoint.every", "50"]
    assert run_together(sft, whole) == [0, 0]

    ended.mkdir()
    mesh = ["--mesh.coordinator", f"127.0.0.1:{free_port()}", "--mesh.processes", "2"]
    running = [
        headrace(
            *(*sft, *mesh, "--mesh.process", str(index)), devices=2, said=ended / f"said-{index}"
        )
        for index in range(2)
    ]
    try:
        metrics = ended / "run" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and "grad_norm" in metrics.read_text())
        running[1].send_signal(signal.SIGTERM)  # followers leave it to process 0
        running[0].send_signal(signal.SIGTERM)
        codes = [one.wait(SECONDS) for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert codes == [128 + signal.SIGTERM, 0]
    assert summary(ended)["interrupted_by"] == "SIGTERM"
    assert 0 < summary(ended)["updates"] < 50
    assert run_together(["resume", "run"], ended) == [0, 0]
    same(whole, ended)
    assert summary(ended)["resumed_from"] != []


@pytest.mark.slow
def test_a_row_that_cannot_be_used_ends_both(tmp_path: Path) -> None:
    rows = (PROJECT / "examples" / "sums.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join([*(64 * rows)[:640], "{}", *rows]) + "\n")
    sft = ["sft", str(tmp_path / "rows.jsonl"), *SFT[2:], "--data.eval-share", "0"]
    codes = run_together([*sft, "--data.no-shuffle"], tmp_path / "run")
    assert codes[0] == 2
    assert codes[1] != 0
    assert summary(tmp_path / "run")["updates"] > 0
    assert (tmp_path / "run" / "run" / "policy").exists()
