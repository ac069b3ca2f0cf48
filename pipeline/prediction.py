"""What a run says of itself at its start: the bounds that hold, and a predicted efficiency.

The prediction is a simulation of the first updates in a process of its own, so that it never
holds the run up; it comes when it is ready.
"""

import json
import subprocess
import sys
from pathlib import Path

import trio

from .groups.schedule import Schedule
from .rollout.config import RolloutConfig

UPDATES = 10  # enough to get past the ramp at the start
MOST_TURNS = 10_000  # some seconds of one core
NICE = ("nice", "-n", "10")  # the run itself comes first


def describe_bounds(schedule: Schedule) -> str:
    """Say which bounds hold for the run, in one line.

    Example:
      >>> describe_bounds(Schedule(max_mean_lag=1, max_lag=4))
      'lag in versions: at most 1 on average, at most 4 for each group (bounded schedule)'
    """
    if schedule.max_mean_lag == 0:
        return "lag in versions: 0, exactly on-policy"
    if schedule.deterministic:
        return (
            f"lag in versions: at most {schedule.max_mean_lag}, reproducible (lockstep schedule)"
        )
    what = "token that trains" if schedule.over_age == "mask" else "group"
    return (
        f"lag in versions: at most {schedule.max_mean_lag} on average, at most "
        f"{schedule.max_lag} for each {what} (bounded schedule)"
    )


def is_quick(schedule: Schedule, rollout: RolloutConfig) -> bool:
    """Whether a simulation of the first updates is a matter of seconds."""
    turns = schedule.batch_groups * rollout.group_size * rollout.max_turns
    return UPDATES * turns <= MOST_TURNS


async def predict(config: Path) -> str:
    """Simulate the first updates of a run; say in one line what came out.

    Args:
      config: the run's resolved configuration, a recipe.
    """
    command = [*NICE, sys.executable, "-m", "headrace", "simulate", str(config), "--json"]
    process = await trio.run_process(
        [*command, "--run.steps", str(UPDATES)],
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if process.returncode != 0:
        return "no prediction: the simulation failed; see headrace simulate"
    report = json.loads(process.stdout)
    return (
        f"a simulation at assumed speeds predicts an efficiency of {report['efficiency']:.2f} and "
        f"{report['waste']:.0%} of dropped work; what limits it: {report['bottleneck']}"
    )

