"""The settings of a run that goes on in another process: they hold there, and few may change."""

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ConfigError, check

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")

# The settings that name a file or a folder, by section.
_PATHS = {
    "data": ("path", "eval"),
    "distill": ("teacher",),
    "distillation": ("teacher",),
    "policy": ("path",),
    "prompts": ("path",),
}


def with_absolute_paths(recipe: R) -> R:
    """Make a recipe's paths hold in any working directory: a run may go on in another.

    Names on the Hub, and paths of nothing that exists, stay as they are.
    """
    sections: Any = vars(recipe)
    held = {}
    for name in _PATHS.keys() & sections.keys():
        section = sections[name]
        paths = {key: _absolute(getattr(section, key)) for key in _PATHS[name]}
        held[name] = replace(section, **paths)
    return replace(recipe, **held)


def _absolute(path: str | None) -> str | None:
    if path is None or not os.path.exists(path):  # noqa: PTH110  # unlike Path's, it takes any text
        return path
    return str(Path(path).absolute())


def check_kept(before: Any, now: Any, free: Collection[str]) -> None:
    """Refuse to go on with settings that would teach something else.

    Args:
      before: the recipe that the run began with, a dataclass as `now` is.
      free: sections, and settings as `section.key`, that may change.

    Raises:
      ConfigError: with the settings that have changed.
    """
    changed = differences(asdict(before), asdict(now), free)
    if changed:
        each = (f"{name} was {old!r}, is {new!r}" for name, (old, new) in changed.items())
        listed = ", ".join(each)
        raise ConfigError(
            f"a run goes on with the settings that it began with, but {listed}; leave them, "
            "or start a new run from this one's policy: --policy and the run directory"
        )


def differences(
    some: Mapping[str, Any], others: Mapping[str, Any], free: Collection[str]
) -> dict[str, tuple[Any, Any]]:
    """Give the settings, as `section.key`, that differ in two tables of one recipe's.

    Args:
      free: sections, and settings, that may differ.
    """
    old, new = _flat(some), _flat(others)
    bound = [name for name in new if not {name, name.partition(".")[0]} & {*free}]
    return {name: (old[name], new[name]) for name in bound if old[name] != new[name]}


def check_data(path: str, *, before: str, now: str, flag: str) -> None:
    """Refuse to go on with another file of data.

    Args:
      before: its SHA-256 when the run began.
      now: its SHA-256.
      flag: the setting that names it.

    Raises:
      ConfigError: where they differ.
    """
    if now != before:
        raise ConfigError(
            f"{path} isn't the file that this run began with: its SHA-256 was {before[:16]}…, is "
            f"{now[:16]}…; put the old one back or name it with {flag}, or start a new run from "
            "this one's policy: --policy and the run directory"
        )


def check_steps(steps: int, *, done: int) -> None:
    """Refuse to go on to fewer updates than were taken.

    Raises:
      ConfigError: in this case.
    """
    check(steps >= done, "run.steps", steps, f">= {done}, the updates that were taken")


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Give `section.key` → value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        inner = _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else None
        flat |= {above + key: value} if inner is None else inner
    return flat
