"""What a run says of itself at its start: the bounds that hold, and a predicted efficiency.

The prediction is a simulation of the first updates in a process of its own, so that it never
holds the run up; it comes when it is ready.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from .config import Recipe
from .groups.schedule import Schedule
from .rollout.config import RolloutConfig

FEWEST_UPDATES = 10  # to get past the ramp at the start
MOST_TURNS = 20_000  # some seconds of one core
DEADLINE_SECONDS = 300.0
NICE = ("nice", "-n", "10")  # the run itself comes first
# The command, which ends as soon as its standard input does: with the run, however that ends.
_BOOT = (
    "import os, sys, threading\n"
    "def end_with_the_run(): os.read(0, 1); os._exit(1)\n"
    "threading.Thread(target=end_with_the_run, daemon=True).start()\n"
    f"from {__package__}.cli import main; main()"
)


async def say_what_to_expect(recipe: Recipe, config: Path, say: Callable[[str], None]) -> None:
    """Say which bounds hold and, where it is quickly done, what a simulation predicts.

    Args:
      config: the run's resolved configuration, a recipe.
    """
    say(describe_bounds(recipe.schedule))
    if recipe.run.predict and is_quick(recipe.schedule, recipe.rollout):
        say(await predict(config, updates_to_simulate(recipe.schedule)))
    elif recipe.run.predict:
        say("too large to predict on the side; see headrace simulate")


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


def updates_to_simulate(schedule: Schedule) -> int:
    """Return after how many updates groups have been dropped for their age, if they ever are."""
    return max(FEWEST_UPDATES, 3 * (schedule.max_lag + 1))


def is_quick(schedule: Schedule, rollout: RolloutConfig) -> bool:
    """Whether a simulation of the first updates is a matter of seconds."""
    turns = schedule.batch_groups * rollout.group_size * rollout.max_turns
    return updates_to_simulate(schedule) * turns <= MOST_TURNS


async def predict(config: Path, updates: int) -> str:
    """Simulate the first updates of a run; say in one line what came out.

    It never fails: a run doesn't depend on what is said of it.

    Args:
      config: the run's resolved configuration, a recipe.
    """
    with trio.move_on_after(DEADLINE_SECONDS):
        try:
            return _in_words(await _simulate(config, updates), updates)
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            return f"no prediction: {type(error).__name__}: {error}; try headrace simulate"
    return f"no prediction within {DEADLINE_SECONDS:g} s; try headrace simulate"


async def _simulate(config: Path, updates: int) -> Mapping[str, Any]:
    arguments = ["simulate", str(config), "--json", "--run.steps", str(updates)]
    theirs, ours = os.pipe()
    try:
        process = await trio.run_process(
            [*NICE, sys.executable, "-c", _BOOT, *arguments],
            stdin=theirs,
            capture_stdout=True,
            stderr=subprocess.DEVNULL,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    report: Mapping[str, Any] = json.loads(process.stdout)
    return report


def _in_words(report: Mapping[str, Any], updates: int) -> str:
    return (
        f"a simulation of {updates} updates at assumed speeds predicts an efficiency of "
        f"{report['efficiency']:.2f} and {report['waste']:.0%} of dropped work; what limits it: "
        f"{report['bottleneck']}"
    )
