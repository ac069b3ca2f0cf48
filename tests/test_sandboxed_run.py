"""A training run whose environment runs the policy's code in sandboxes, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.envs.sandbox.harness import require

ROOT = Path(__file__).parent.parent
RECIPE = """
[run]
steps = 2

[env]
name = "code"

[prompts]
num_tasks = 16

[text]
characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:'()[]{}+-*/%=<>\\n"

[model]
num_layers = 1
width = 32
num_heads = 2
num_kv_heads = 2
head_width = 16
ffn_width = 32

[sampler]
rows = 16
context_tokens = 384
prefill_lanes = 4
prefill_tokens = 160

[rollout]
group_size = 2
max_turns = 2
max_turn_tokens = 64
max_tokens = 384
max_episodes = 8

[schedule]
batch_groups = 4

[learner]
microbatch_rows = 2
row_tokens = 384

[warm_start]
steps = 0

[evaluate]
tasks = 4
"""


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments], cwd=ROOT, text=True, capture_output=True,
        check=False, timeout=240,
    )  # fmt: skip


def processes() -> set[str]:
    """Interpreters and sandboxes that name this project, but for the tests."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"bwrap" in command or b"headrace.envs.sandbox" in command:
            found.add(path.parent.name)
    return found - {str(os.getpid())}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_code_is_run_in_sandboxes_and_each_call_is_in_the_log(tmp_path: Path) -> None:
    require("bwrap")  # skips where there is none
    recipe, run = tmp_path / "code.toml", tmp_path / "run"
    recipe.write_text(RECIPE, encoding="utf-8")
    before = processes()
    done = headrace("train", str(recipe), "--run.dir", str(run), "--run.no-predict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert processes() == before

    text = (run / "sandbox.jsonl").read_text(encoding="utf-8")
    calls = [call for call in map(json.loads, text.splitlines()) if "status" in call]
    assert len(text.splitlines()) == 1 + 2 * len(calls)  # a configuration; then begins and ends
    answers = 0  # turns of trained episodes that were closed, and so run
    for line in (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines():
        episode = json.loads(line)
        cut = episode["stop_reason"] == "max_turn_tokens"
        run_turns = len(episode["turns"]) - cut
        named = f"{episode['group']}.{episode['member']}"
        assert sum(call["episode"] == named for call in calls) == run_turns
        answers += run_turns
    assert 0 < answers <= len(calls)
    assert {call["backend"] for call in calls} == {"bwrap"}

    audit = headrace("audit", str(run))
    assert audit.returncode == 0, audit.stderr
    assert f"{len(calls)} calls" in audit.stdout
    (run / "sandbox.jsonl").write_text(text.replace('"exit_code":1', '"exit_code":0', 1))
    assert headrace("audit", str(run)).returncode != 0
