"""`headrace sft`, `headrace prefer` and `headrace distill`: train without rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio
import tyro

from ..checkpoint import Checkpoints
from ..errors import ConfigError, HeadraceError, check
from ..kept_settings import with_absolute_paths
from ..observe.run_directory import CHECKPOINTS_FOLDER, RunDirectory
from ..offline.assemble import OfflineParts, assemble_offline
from ..offline.config import (
    RECIPES,
    OfflineRecipe,
    command_of,
    default_recipe,
)
from ..offline.progress import Saved
from ..offline.replica import follow as follow_process_0
from ..processes import Processes
from ..supervise import end_without_threads
from ..tables import from_table, read_toml
from ..train_offline import OfflineJob
from .begin import begun, note_resumed, point_to_checkpoint
from .flags import take_out
from .messages import explain, finish
from .together import check_same_step, ended, follow, joined, joined_again

_COLUMNS = {
    "sft": (("loss", "loss", 6), ("entropy", "entropy", 6)),
    "prefer": (("loss", "loss", 6), ("accuracy", "accuracy", 5), ("margin", "margin", 6)),
    "distill": (("loss", "divergence", 6), ("teacher_mass", "mass", 5)),
}
_ALWAYS = (
    ("grad_norm", "gradient", 6),
    ("tokens_per_second", "tokens/s", 6),
    ("rows_skipped", "skipped", 3),
)


def train_offline(
    command: str, data_or_config: str, flags: Sequence[str], began_seconds: float
) -> int:
    """Run one of the three commands.

    Args:
      command: sft, prefer or distill.
      data_or_config: a file of rows, or a .toml file of settings that names one.
      began_seconds: of `time.monotonic()` when the command started.
    """
    try:
        recipe = _parse(command, data_or_config, flags)
        with joined(recipe) as processes:
            # Mistakes are found before anything is written.
            return _run(recipe, assemble_offline(recipe, processes), began_seconds)
    except (HeadraceError, BaseExceptionGroup) as error:
        return ended(explain(error))


def go_on(
    directory: RunDirectory, table: Mapping[str, Any], flags: Sequence[str], began_seconds: float
) -> int:
    """Go on with a run of one of the three commands, from its last checkpoint.

    Args:
      directory: its own.
      table: its settings.
    """
    recipe = _recipe_of(directory, table, flags)
    with joined_again(recipe, directory) as processes:
        saved = _saved(directory, recipe)
        check_same_step(processes, None if saved is None else saved.progress.updates)
        return _run(
            recipe,
            _parts_to_go_on(recipe, processes, saved),  # nobody here keeps pretrained weights
            began_seconds,
            directory=directory,
            saved=saved,
        )


def _run(
    recipe: OfflineRecipe,
    parts: OfflineParts,
    began_seconds: float,
    *,
    directory: RunDirectory | None = None,
    saved: Saved | None = None,
) -> int:
    """Run a job in a directory that is held; None: in a new one. Or follow another process's."""
    processes = parts.processes
    if processes.follower is not None:
        folder = Path() if directory is None else directory.path / CHECKPOINTS_FOLDER
        as_process_0 = partial(follow_process_0, recipe, parts, folder, saved)
        cache = recipe.run.compilation_cache
        return follow(processes, as_process_0, compilation_cache=cache)
    columns, more = (*_COLUMNS[command_of(recipe)], *_ALWAYS), recipe.learner.decay_share == 0
    opened = begun(recipe.run, directory, steps=parts.steps, kind="plain", columns=columns)
    with opened as (own, view):
        if directory is not None:
            updates = None if saved is None else saved.progress.updates
            note_resumed(view, updates, parts.steps, may_take_more=more)
        job = OfflineJob(recipe, parts, own, view, saved=saved)
        del parts  # the job lets go of pretrained weights, which nobody else holds
        try:
            trio.run(job.run, began_seconds)
        except (HeadraceError, BaseExceptionGroup) as error:
            code = ended(explain(processes.fail(error)))
            if job.left_a_thread:
                end_without_threads(code, after_seconds=recipe.waits.exit_deadline_seconds)
            point_to_checkpoint(code, own.path)
            return code
        processes.end()
    where = own.path
    on = f"Go on with it: headrace resume {where}" if recipe.checkpoint.every else ""
    code = finish(
        where,
        job.interrupted_by,
        "  policy/, summary.json, metrics.jsonl and the resolved config.toml\n"
        f"Next: talk to it:       headrace chat {where}\n"
        f"      train it further: headrace train RECIPE --policy {where}",
        stopped=on,
    )
    return ended(code)


def _recipe_of(
    directory: RunDirectory, table: Mapping[str, Any], flags: Sequence[str]
) -> OfflineRecipe:
    """Read a run's settings and what is to change of them."""
    kinds = {"preference": "prefer", "distill": "distill"}
    command = next((kind for section, kind in kinds.items() if section in table), "sft")
    recipe: OfflineRecipe = tyro.cli(
        RECIPES[command],
        default=_from_table(command, table, directory.config_path),
        args=list(flags),
        prog=f"headrace resume {directory.path}",
    )
    where = recipe.run.dir
    check(where is None, "run.dir", where, "left out: a run goes on in its own directory")
    return with_absolute_paths(recipe)


def _saved(directory: RunDirectory, recipe: OfflineRecipe) -> Saved | None:
    """Read what the latest checkpoint says, None without one; refuse what does not fit it."""
    checkpoints = Checkpoints(directory.path / CHECKPOINTS_FOLDER)
    saved = checkpoints.latest_record(Saved.from_table)
    if saved is None:
        directory.check_nothing_is_lost()
        return None
    saved.check_settings(recipe)
    saved.check_data(recipe.data.path)
    return saved


def _parts_to_go_on(
    recipe: OfflineRecipe, processes: Processes, saved: Saved | None
) -> OfflineParts:
    parts = assemble_offline(recipe, processes)
    if saved is not None:
        saved.check_steps(parts.steps)
    return parts


def _parse(command: str, data_or_config: str, arguments: Sequence[str]) -> OfflineRecipe:
    what = "a folder, a name on the Hub, a .gguf file, or smollm2"
    policy, flags = take_out("--policy", arguments, what)
    teacher, flags = take_out("--teacher", flags, what)
    if data_or_config.endswith(".toml"):
        path = Path(data_or_config)
        recipe = _from_table(command, read_toml(path), path)
    else:
        recipe = default_recipe(command, pretrained=policy is not None)
        recipe = replace(recipe, data=replace(recipe.data, path=data_or_config))
    if policy is not None:
        recipe = replace(recipe, policy=replace(recipe.policy, path=policy))
    if teacher is not None:
        if command != "distill":
            raise ConfigError(f"--teacher is for headrace distill, not {command}")
        recipe = replace(recipe, distill=replace(recipe.distill, teacher=teacher))
    parsed: OfflineRecipe = tyro.cli(
        RECIPES[command],
        default=recipe,
        args=flags,
        prog=f"headrace {command} {data_or_config}",
    )
    return with_absolute_paths(parsed)


def _from_table(command: str, table: Mapping[str, Any], path: Path) -> Any:
    try:
        return from_table(RECIPES[command], table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
