"""The settings of a run that goes on in another process: they hold there, and few may change."""

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .errors import ConfigError, check


def absolute(path: str) -> str:
    """Make a path hold in any working directory; a name of nothing that exists stays as it is."""
    exists = os.path.exists(path)  # noqa: PTH110  # unlike Path's, it takes any text
    return str(Path(path).absolute()) if exists else path


def check_kept(before: Any, now: Any, free: Collection[str]) -> None:
    """Refuse to go on with settings that would teach something else.

    Args:
      before: the recipe that the run began with, a dataclass as `now` is.
      free: sections, and settings as `section.key`, that may change.

    Raises:
      ConfigError: with the settings that have changed.
    """
    old, new = _flat(asdict(before)), _flat(asdict(now))
    bound = [name for name in new if not {name, name.partition(".")[0]} & {*free}]
    changed = [name for name in bound if old[name] != new[name]]
    if changed:
        listed = ", ".join(f"{name} was {old[name]!r}, is {new[name]!r}" for name in changed)
        raise ConfigError(
            f"a run goes on with the settings that it began with, but {listed}; leave them, "
            "or start a new run from this one's policy: --policy and the run directory"
        )


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
