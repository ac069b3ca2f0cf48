"""Hangs and starvation: what dies, hangs or is slow costs its own data, and nobody's time."""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from headrace.envs.base import EPISODE
from headrace.pipeline.groups.schedule import Schedule
from tests.controller.harness import ROLLOUT, Run
from tests.controller.relay import Relay
from tests.test_train import ROOT, TINY

MEMBERS, STUCK_TASKS, STUCK_MEMBER = 4, ("1", "4"), "2"
ENV_DEADLINE = 20.0
LOOSE = Schedule(batch_groups=2, max_mean_lag=2, max_lag=100)  # no group is ever too old


def is_stuck(call, task):
    """Whether this is a step of the member that never answers, in any of its tries."""
    member = EPISODE.get().partition(".")[2].partition(" ")[0]
    return call == "step" and task.id in STUCK_TASKS and member == STUCK_MEMBER


@pytest.mark.parametrize(
    ("failure", "tries", "members"),
    [
        # the rule, tries of the stuck member, members of its group that are trained
        ("retry", 3, 0),
        ("survivors", 1, MEMBERS - 1),
        ("drop", 1, 0),
    ],
)
def test_conformance_2_one_stuck_member_holds_up_neither_its_group_nor_the_run(
    failure, tries, members
):
    since, waited = {}, {task: [] for task in STUCK_TASKS}

    async def hook(call, task, step):
        name = EPISODE.get()
        if call == "close" and name in since:
            waited[task.id].append(trio.current_time() - since[name])
        if is_stuck(call, task):
            since[name] = trio.current_time()
            await trio.sleep_forever()

    rollout = replace(
        ROLLOUT, group_size=MEMBERS, failure=failure, max_retries=2, min_group_size=3,
        env_deadline_seconds=ENV_DEADLINE, max_episodes=32,
    )  # fmt: skip
    run = Run(hook=hook, steps=100, schedule=LOOSE, rollout=rollout).go(deadline_seconds=400)
    assert waited == {task: [pytest.approx(ENV_DEADLINE)] * tries for task in STUCK_TASKS}
    assert run.controller.flight.failures == {"env_timeout": tries * len(STUCK_TASKS)}
    of_stuck = [len(g.trajectories) for g in run.groups if g.task.id in STUCK_TASKS]
    assert of_stuck == [members] * len(STUCK_TASKS) * (members > 0)
    dropped = 0 if members else len(STUCK_TASKS)
    assert Counter(run.counts.dropped)["env_timeout"] == dropped
    assert run.seconds > 3 * ENV_DEADLINE  # so the run has outlived all that was stuck


def test_conformance_2_a_stuck_member_holds_up_nothing_after_a_resume_either():
    """Two processes are killed while it is stuck; each that follows starts its group anew."""
    waited = []

    async def hook(rng, call, task):
        if is_stuck(call, task):
            began = trio.current_time()
            try:
                await trio.sleep_forever()
            finally:
                waited.append(trio.current_time() - began)

    rollout = replace(
        ROLLOUT, group_size=MEMBERS, max_retries=1, env_deadline_seconds=ENV_DEADLINE
    )
    relay = Relay(3, LOOSE, steps=30, rollout=rollout, hook=hook).go([(25.0, "kill")] * 2)
    assert [update.batch for update in relay.updates] == list(range(30))
    for run in relay.runs[1:]:
        waiting = {group.task_id for group in run.saved.ledger.running}
        assert waiting & set(STUCK_TASKS)
    assert len(waited) >= 3 + len(STUCK_TASKS)  # in each process, and in a second try
    assert ENV_DEADLINE / 2 < max(waited) < ENV_DEADLINE + 0.001


OUTSIDE = """
from examples.reverse import Reverse, tasks
from headrace.envs import EnvSpec, EnvironmentBroken

class OwnError(BaseException):
    pass

class Raises(Reverse):
    async def step(self, message):
        raise {error}

SPEC = EnvSpec(make=Raises, tasks=tasks, demonstrate=None, best_reward=1.0)
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        ("SystemExit(0)", 1, "SystemExit: 0 (in stage 'groups')"),
        ("KeyboardInterrupt()", 130, "interrupted"),
        ("OwnError('the end')", 1, "OwnError: the end (in stage 'groups')"),
        ("EnvironmentBroken('no licence')", 1, "stage 'groups' failed: EnvironmentBroken: no"),
    ],
)
def test_conformance_3_an_error_outside_exception_in_a_rollout_ends_the_process(
    error, code, shown, tmp_path
):
    (tmp_path / "raises.py").write_text(OUTSIDE.format(error=error), encoding="utf-8")
    recipe = (ROOT / "examples" / "reverse.toml").read_text(encoding="utf-8")
    recipe = recipe.replace("examples.reverse:SPEC", "raises:SPEC")
    (tmp_path / "raises.toml").write_text(recipe, encoding="utf-8")
    only_training = ["--warm-start.steps", "0", "--evaluate.tasks", "0"]
    done = headrace("train", "raises.toml", *TINY, *only_training, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert shown in done.stderr


def headrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, cwd)))},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
