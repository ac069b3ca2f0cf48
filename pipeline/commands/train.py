"""`headrace train`: run a recipe."""

import sys
from collections.abc import Sequence
from pathlib import Path

import trio
import tyro

from ..assemble import assemble
from ..compilation_cache import keep_programs
from ..config import Recipe
from ..errors import ConfigError, HeadraceError
from ..observe.run_directory import RunDirectory
from ..observe.view import open_view
from ..recipes import load_recipe
from ..supervise import end_without_threads
from ..train import Job
from .flags import take_out
from .messages import explain, finish


def train(name_or_file: str, flags: Sequence[str], began_seconds: float) -> int:
    """Train by reinforcement.

    Args:
      began_seconds: of `time.monotonic()` when the command started.
    """
    sys.path.append(str(Path.cwd()))  # where users keep the modules of their environments
    try:
        recipe = _parse_recipe(name_or_file, flags)
        parts = assemble(recipe)  # finds the mistakes that are left, before anything is written
        config = recipe.run
        directory = RunDirectory.create_for(config.dir, config.name)
        keep_programs(config.compilation_cache)
        with open_view(config.name, config.steps, stream=sys.stdout, kind=config.view) as view:
            job = Job(recipe, parts, directory, view)
            del parts  # the job lets go of pretrained weights
            trio.run(job.run, began_seconds)
    except (HeadraceError, BaseExceptionGroup) as error:
        return explain(error)
    where = directory.path
    code = finish(
        where,
        job.interrupted_by,
        "  summary.json, metrics.jsonl, trajectories.jsonl and the resolved config.toml\n"
        f"Next: read what the policy does:  tail -n 3 {where / 'trajectories.jsonl'}\n"
        f"      or change something:        headrace train {where / 'config.toml'} --run.seed 1",
    )
    end_without_threads(code, after_seconds=recipe.controller.exit_deadline_seconds)
    return code


def _parse_recipe(name_or_file: str, overrides: Sequence[str]) -> Recipe:
    what = "a folder, a name on the Hub, a .gguf file, or smollm2"
    policy, flags = take_out("--policy", overrides, what)
    algorithm, flags = take_out("--algorithm", flags, "a method such as grpo, gspo or ppo")
    try:
        return tyro.cli(
            Recipe,
            default=load_recipe(name_or_file, policy=policy, algorithm=algorithm),
            args=flags,
            prog=f"headrace train {name_or_file}",
        )
    except ValueError as error:  # from the environments, which know no ConfigError
        raise ConfigError(str(error)) from error
