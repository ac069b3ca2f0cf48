"""Leaks and zombies: what a run has started ends with it, however the run ends."""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.test_train import ROOT, TINY

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
DEADLINE_SECONDS = 10.0  # of what outlives its run
PATIENCE_SECONDS = 60.0  # interpreters start slowly on a loaded machine
MARK = "HEADRACE_TEST_MARK"  # which every process of a run inherits, in whatever session
EPISODES = """
import trio
from headrace.envs import Task, in_processes
from tests.fakes.faulty_env import Faulty

async def episode(make, number):
    while True:
        async with make() as env:
            await env.reset(Task(str(number), {"reset": "leave_a_child"}), 0)
            print("an episode runs", flush=True)
            await trio.sleep(0.2)

async def main():
    make = in_processes(Faulty, processes=2)
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(episode, make, number)

trio.run(main)
"""


def processes_of(mark: str) -> list[int]:
    """All that live, zombies left out."""
    return [int(place.name) for place in Path("/proc").glob("[0-9]*") if is_of(place, mark)]


def is_of(place: Path, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def check_nothing_outlives(mark: str) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while left := processes_of(mark):
        assert time.monotonic() < give_up, [Path(f"/proc/{p}/cmdline").read_text() for p in left]
        time.sleep(0.05)


@contextmanager
def started(mark: str, *command: str, path: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Start a process, and leave nothing of it."""
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}", MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        try:
            yield run
        finally:
            run.kill()
            for pid in processes_of(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("episodes", [0, 1, 5])
def test_conformance_30_no_process_outlives_a_run_that_is_killed_at_any_moment(how, episodes):
    """Soon after its start, and while its workers and their own children run and are replaced."""
    rng, mark = random.Random(episodes), uuid.uuid4().hex
    with started(mark, "-c", EPISODES) as run:
        for _ in range(episodes):
            run.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.4))
        assert episodes == 0 or len(processes_of(mark)) > 1
        run.send_signal(how)
        _, output = run.communicate(timeout=PATIENCE_SECONDS)
        assert run.returncode in (-how, 1), output
        check_nothing_outlives(mark)


PREDICTION = """
from pathlib import Path
import trio
from headrace.pipeline.prediction import predict

trio.run(predict, Path("calculator"), 1_000_000)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_conformance_30_a_prediction_ends_with_its_run(how):
    """It would take minutes."""
    mark = uuid.uuid4().hex
    with started(mark, "-c", PREDICTION) as run:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while len(processes_of(mark)) < 2:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        run.send_signal(how)
        _, output = run.communicate(timeout=PATIENCE_SECONDS)
        assert run.returncode in (-how, 1), output
        check_nothing_outlives(mark)


OWN = """
from headrace.envs import EnvSpec, Message, StepResult, in_processes
from examples.reverse import tasks

class Own:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def reset(self, task, seed):
        return [Message("user", task.data["word"])]

    def step(self, message):
        return StepResult(reward=float(len(message.content)), terminated=True)

SPEC = EnvSpec(make=in_processes(Own, processes=2), tasks=tasks, demonstrate=None, best_reward=4.0)
"""


@pytest.mark.slow
@pytest.mark.timeout(250)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("phase", ["compiling", "step 3"])
def test_conformance_30_no_process_outlives_a_training_that_is_killed(how, phase, tmp_path):
    """Neither its environments' workers nor the simulation that predicts it."""
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    recipe = (ROOT / "examples" / "reverse.toml").read_text(encoding="utf-8")
    own = tmp_path / "own.toml"
    own.write_text(recipe.replace("examples.reverse:SPEC", "own:SPEC"), encoding="utf-8")
    flags = ["--run.dir", str(tmp_path / "run"), *TINY, "--run.steps", "100000"]
    flags += ["--run.predict", "--warm-start.steps", "0", "--evaluate.tasks", "0"]
    rng, mark = random.Random(phase), uuid.uuid4().hex
    with started(mark, "-m", "headrace", "train", str(own), *flags, path=tmp_path) as run:
        for line in run.stdout:
            if line.startswith(phase):
                break
        time.sleep(rng.uniform(0.0, 0.5))
        assert len(processes_of(mark)) > 1
        run.send_signal(how)
        _, output = run.communicate(timeout=2 * PATIENCE_SECONDS)
        assert run.returncode == (130 if how is signal.SIGINT else -how), output
        check_nothing_outlives(mark)
