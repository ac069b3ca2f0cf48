"""The command line. The only place that prints and sets exit codes.

Exit codes: 0 done, 1 a stage failed, 2 a user's mistake, 130 Ctrl-C, 143 SIGTERM.
"""

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from .config import Recipe
    from .observe.run_directory import RunDirectory
    from .train import Job

USAGE = """\
usage: headrace COMMAND

commands:
  train RECIPE [--section.key value ...]  run a recipe: a built-in name or a .toml file
  train RECIPE --help                     show all settings, with the recipe's values
  recipes                                 list the built-in recipes
  --version                               show the version

Start with: headrace train calculator
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before or after the part that handles signals in order
        print("headrace: interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    match list(arguments):
        case [] | ["-h" | "--help"]:
            print(USAGE, end="")
            return 0
        case ["--version"]:
            print(f"headrace {version('headrace')}")
            return 0
        case ["train", *rest]:
            return _train(rest)
        case ["recipes"]:
            return _recipes()
        case [command, *_]:
            return _mistake(f"unknown command or argument {command!r}; see headrace --help")
    raise AssertionError("unreachable: all argument lists are covered")


def _train(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return _mistake("train needs a recipe: headrace train calculator, or a .toml file")
    # Imported here: JAX takes seconds to import, and the other commands don't need it.
    import trio  # noqa: PLC0415

    from .observe.view import open_view  # noqa: PLC0415
    from .train import Job  # noqa: PLC0415

    sys.path.insert(0, str(Path.cwd()))  # where users keep the modules of their environments
    try:
        recipe = _parse_recipe(arguments[0], arguments[1:])
        job = Job(recipe)  # finds the mistakes that are left, before anything is written
        directory = _run_directory(recipe)
        config = recipe.run
        with open_view(config.name, config.steps, stream=sys.stdout, kind=config.view) as view:
            trio.run(job.run, directory, view)
    except (HeadraceError, BaseExceptionGroup) as error:
        return _explain(error)
    return _finish(job, directory)


def _parse_recipe(name_or_file: str, overrides: Sequence[str]) -> "Recipe":
    import tyro  # noqa: PLC0415

    from .config import Recipe  # noqa: PLC0415
    from .recipes import load_recipe  # noqa: PLC0415

    try:
        return tyro.cli(
            Recipe,
            default=load_recipe(name_or_file),
            args=list(overrides),
            prog=f"headrace train {name_or_file}",
        )
    except ValueError as error:  # from the environments, which know no ConfigError
        raise ConfigError(str(error)) from error


def _run_directory(recipe: "Recipe") -> "RunDirectory":
    from .observe.run_directory import RunDirectory  # noqa: PLC0415

    if recipe.run.dir is None:
        return RunDirectory.create_default(recipe.run.name)
    return RunDirectory.create(Path(recipe.run.dir))


def _recipes() -> int:
    from .recipes import builtin_recipes  # noqa: PLC0415

    names = builtin_recipes()
    width = max(len(name) for name in names)
    for name, text in names.items():
        print(f"{name:<{width}}  {text}")
    return 0


def _finish(job: "Job", directory: "RunDirectory") -> int:
    """Say where the results are and what to do next."""
    where = directory.path
    if job.interrupted_by is not None:
        print(f"Stopped by {job.interrupted_by.name}; what was done so far is in {where}")
        return 128 + job.interrupted_by
    print(f"Done. The run is in {where}:")
    print("  summary.json, metrics.jsonl, trajectories.jsonl and the resolved config.toml")
    print(f"Next: read what the policy does:  tail -n 3 {where / 'trajectories.jsonl'}")
    print(f"      or change something:        headrace train {where / 'config.toml'} --run.seed 1")
    return 0


def _explain(error: BaseException) -> int:
    """Say in one message what ended the run; raise what is nobody's expected error."""
    cause = _first_of_ours(error)
    if cause is None:
        raise error
    if isinstance(cause, ConfigError):
        return _mistake(str(cause))
    if cause.__cause__ is not None and _first_of_ours(cause.__cause__) is None:
        traceback.print_exception(cause.__cause__)  # unexpected: where it happened matters
    print(f"headrace: {cause}", file=sys.stderr)
    return 1


def _first_of_ours(error: BaseException) -> HeadraceError | None:
    if isinstance(error, BaseExceptionGroup):
        found = (_first_of_ours(inner) for inner in error.exceptions)
        return next((inner for inner in found if inner is not None), None)
    return error if isinstance(error, HeadraceError) else None


def _mistake(text: str) -> int:
    print(f"headrace: {text}", file=sys.stderr)
    return 2
