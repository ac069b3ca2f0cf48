"""`headrace train`: run a recipe."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio
import tyro

from ..assemble import Parts, assemble
from ..checkpoint import Checkpoints
from ..config import Recipe
from ..errors import ConfigError, HeadraceError, check
from ..follow import follow as follow_process_0
from ..kept_settings import with_absolute_paths
from ..observe.run_directory import CHECKPOINTS_FOLDER, RunDirectory
from ..processes import Processes
from ..recipes import load_recipe
from ..saved_run import SavedRun
from ..supervise import end_without_threads
from ..train import Job
from .begin import begun, note_resumed, point_to_checkpoint
from .flags import take_out
from .messages import explain, finish
from .together import check_same_step, ended, follow, joined, joined_again


def train(name_or_file: str, flags: Sequence[str], began_seconds: float) -> int:
    """Train by reinforcement.

    Args:
      began_seconds: of `time.monotonic()` when the command started.
    """
    _find_environments()
    try:
        recipe = _parse_recipe(name_or_file, flags)
        with joined(recipe) as processes:
            # Mistakes are found before anything is written.
            return _run(recipe, assemble(recipe, processes), began_seconds)
    except (HeadraceError, BaseExceptionGroup) as error:
        return ended(explain(error))


def go_on(directory: RunDirectory, flags: Sequence[str], began_seconds: float) -> int:
    """Go on with a run from its last checkpoint.

    Args:
      directory: its own.
    """
    _find_environments()
    recipe = load_recipe(str(directory.config_path))
    recipe = _parse(recipe, flags, f"headrace resume {directory.path}")
    where = recipe.run.dir
    check(where is None, "run.dir", where, "left out: a run goes on in its own directory")
    with joined_again(recipe, directory) as processes:
        saved = Checkpoints(directory.path / CHECKPOINTS_FOLDER).latest_record(SavedRun.from_table)
        if saved is None:
            directory.check_nothing_is_lost()
        else:
            saved.check_settings(recipe)
        check_same_step(processes, None if saved is None else saved.updates)
        return _run(
            recipe,
            _parts_to_go_on(recipe, processes, saved),  # nobody here keeps pretrained weights
            began_seconds,
            directory=directory,
            saved=saved,
        )


def _parts_to_go_on(recipe: Recipe, processes: Processes, saved: SavedRun | None) -> Parts:
    parts = assemble(recipe, processes)
    if saved is not None:
        parts.tasks.restore(saved.position)
    return parts


def _run(
    recipe: Recipe,
    parts: Parts,
    began_seconds: float,
    *,
    directory: RunDirectory | None = None,
    saved: SavedRun | None = None,
) -> int:
    """Run a job in a directory that is held; None: in a new one. Or follow another process's."""
    if parts.processes.follower is not None:
        as_process_0 = partial(trio.run, follow_process_0, recipe, parts, directory, saved)
        cache = recipe.run.compilation_cache
        return follow(parts.processes, as_process_0, compilation_cache=cache)
    config, more, processes = recipe.run, recipe.learner.decay_share == 0, parts.processes
    updates = None if saved is None else saved.updates
    opened = begun(config, directory, steps=config.steps, done=updates or 0, kind=config.view)
    with opened as (own, view):
        if directory is not None:
            note_resumed(view, updates, config.steps, may_take_more=more)
        job = Job(recipe, parts, own, view, saved=saved)
        del parts  # the job lets go of pretrained weights
        try:
            trio.run(job.run, began_seconds)
        except (HeadraceError, BaseExceptionGroup) as error:
            view.close()
            code = ended(explain(processes.fail(error)))
            point_to_checkpoint(code, own.path)
            return code
        processes.end()
    where, policy = own.path, "policy/, " if config.save_policy else ""
    code = finish(
        where,
        job.interrupted_by,
        f"  {policy}summary.json, metrics.jsonl, trajectories.jsonl and the resolved config.toml\n"
        f"Next: read what the policy does:  tail -n 3 {where / 'trajectories.jsonl'}\n"
        f"      or change something:        headrace train {where / 'config.toml'} --run.seed 1",
        stopped=f"Go on with it: headrace resume {where}" if recipe.checkpoint.every else "",
    )
    end_without_threads(code, after_seconds=recipe.controller.exit_deadline_seconds)
    return code


def _find_environments() -> None:
    sys.path.append(str(Path.cwd()))  # where users keep the modules of their environments


def _parse_recipe(name_or_file: str, overrides: Sequence[str]) -> Recipe:
    what = "a folder, a name on the Hub, a .gguf file, or smollm2"
    policy, flags = take_out("--policy", overrides, what)
    algorithm, flags = take_out("--algorithm", flags, "a method such as grpo, gspo or ppo")
    recipe = load_recipe(name_or_file, policy=policy, algorithm=algorithm)
    return _parse(recipe, flags, f"headrace train {name_or_file}")


def _parse(recipe: Recipe, flags: Sequence[str], program: str) -> Recipe:
    try:
        return with_absolute_paths(tyro.cli(Recipe, default=recipe, args=flags, prog=program))
    except ValueError as error:  # from the environments, which know no ConfigError
        raise ConfigError(str(error)) from error
