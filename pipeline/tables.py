"""Nested frozen dataclasses from tables, as TOML and JSON hold them.

Law 20: a key that the dataclass doesn't have is an error, and so is a value of another type.
"""

import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from .errors import ConfigError, reason

T = TypeVar("T")


def from_table(cls: type[T], table: Mapping[str, Any], *, where: str = "") -> T:
    """Build a (nested) frozen dataclass from a table, checking keys and types.

    Args:
      cls: the dataclass; keys that the table lacks have its defaults.
      where: what stands before a key in messages, as in "model.".

    Raises:
      ConfigError: for an unknown key or a value of the wrong type.
    """
    hints = get_type_hints(cls)
    known = [item.name for item in fields(cls)]  # type: ignore[arg-type]  # T is a dataclass
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(
                f"unknown key {where + key!r}{did_you_mean(key, known)}; "
                f"the keys there are {', '.join(known)}"
            )
        values[key] = _convert(hints[key], value, setting=where + key)
    return cls(**values)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file of settings.

    Raises:
      ConfigError: where it can't be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"can't read the settings {path}: {reason(error)}; give a TOML file"
        ) from error


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is nearest, or nothing."""
    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _convert(hint: Any, value: Any, *, setting: str) -> Any:
    if is_dataclass(hint) and isinstance(value, Mapping):
        return from_table(typing.cast(type[Any], hint), value, where=f"{setting}.")
    if get_origin(hint) is Literal and value in get_args(hint):
        return value
    if get_origin(hint) is types.UnionType:
        if value is None:  # JSON has it, TOML leaves the key out
            return None
        (hint,) = (option for option in get_args(hint) if option is not type(None))
        return _convert(hint, value, setting=setting)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_convert(get_args(hint)[0], item, setting=setting) for item in value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint:
        return value
    raise ConfigError(f"{setting} must be {_describe(hint)}, got {value!r}")


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        return f"a list of {_describe(get_args(hint)[0])}"
    if is_dataclass(hint):
        return "a table"
    return {str: "text", int: "an integer", float: "a number", bool: "true or false"}[hint]
