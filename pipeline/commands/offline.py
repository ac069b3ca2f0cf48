"""`headrace sft`, `headrace prefer` and `headrace distill`: train without rollouts."""

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio
import tyro

from ..compilation_cache import keep_programs
from ..errors import ConfigError, HeadraceError
from ..observe.run_directory import RunDirectory
from ..observe.view import open_view
from ..offline.assemble import assemble_offline
from ..offline.config import RECIPES, OfflineRecipe, default_recipe
from ..tables import from_table
from ..train_offline import OfflineJob
from .flags import take_out
from .messages import explain, finish

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
        parts = assemble_offline(recipe)  # finds mistakes before anything is written
        config = recipe.run
        directory = RunDirectory.create_for(config.dir, config.name)
        keep_programs(config.compilation_cache)
        columns = (*_COLUMNS[command], *_ALWAYS)
        with open_view(
            config.name, parts.steps, stream=sys.stdout, kind="plain", columns=columns
        ) as view:
            job = OfflineJob(recipe, parts, directory, view)
            del parts  # the job lets go of pretrained weights
            trio.run(job.run, began_seconds)
    except (HeadraceError, BaseExceptionGroup) as error:
        return explain(error)
    where = directory.path
    return finish(
        where,
        job.interrupted_by,
        "  policy/, summary.json, metrics.jsonl and the resolved config.toml\n"
        f"Next: talk to it:       headrace chat {where}\n"
        f"      train it further: headrace train RECIPE --policy {where}",
    )


def _parse(command: str, data_or_config: str, arguments: Sequence[str]) -> OfflineRecipe:
    what = "a folder, a name on the Hub, a .gguf file, or smollm2"
    policy, flags = take_out("--policy", arguments, what)
    teacher, flags = take_out("--teacher", flags, what)
    if data_or_config.endswith(".toml"):
        recipe = _read_config(command, data_or_config)
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
    return parsed


def _read_config(command: str, path: str) -> Any:
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"can't read the settings {path}: {error}") from error
    try:
        return from_table(RECIPES[command], table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
