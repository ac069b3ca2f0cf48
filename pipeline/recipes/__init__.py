"""Recipes as TOML files, the built-in ones beside this module.

Law 20: a key that no stage knows is an error, and so is a value of another type.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..algorithms.presets import PRESETS
from ..config import Recipe
from ..errors import ConfigError
from ..tables import did_you_mean, from_table, read_toml

_FOLDER = Path(__file__).parent
_POLICIES = _FOLDER / "policies"


def load_recipe(
    name_or_file: str,
    *,
    policy: str | None = None,
    algorithm: str | None = None,
    beside: Collection[str] = (),
) -> Recipe:
    """Load a built-in recipe by name, or a TOML file.

    Args:
      policy: a pretrained policy to start from, as for `policy.path`. Where the recipe is made
        for none, the sizes of `policies/<policy>.toml` are put over its own, or those of
        `policies/pretrained.toml` where there is no such file.
      algorithm: a method's name in `PRESETS`, which replaces the recipe's [algorithm].
      beside: names that the caller knows, for the message that there is no such recipe.

    Raises:
      ConfigError: for an unknown name, a missing or malformed file, an unknown key, a value
        of the wrong type.

    Example:
      >>> load_recipe("calculator").run.name
      'calculator'
    """
    path = _find(name_or_file, beside)
    table = read_toml(path)
    if "data" in table:
        raise ConfigError(
            f"{path} has the settings of headrace sft, prefer or distill; give a recipe of "
            "headrace train"
        )
    if policy is not None:
        table = _with_policy(table, policy)
    if algorithm is not None:
        table = {**table, "algorithm": {"preset": algorithm}}
    try:
        table = _with_preset(table)
        recipe = from_table(Recipe, table)
    except (ConfigError, ValueError) as error:  # environments raise ValueErrors
        raise ConfigError(f"{path.name}: {error}") from error
    if "name" in table.get("run", {}):
        return recipe
    return replace(recipe, run=replace(recipe.run, name=path.stem))


def builtin_recipes() -> dict[str, str]:
    """Return name → first comment line of every built-in recipe."""
    first_lines = {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0]
        for path in sorted(_FOLDER.glob("*.toml"))
    }
    return {name: line.lstrip("# ") for name, line in first_lines.items()}


def _with_policy(table: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """Start a recipe from a pretrained policy, whose files say what [model] and [text] said."""
    chosen = {"policy": {"path": policy}}
    if "policy" in table:
        return _over(table, chosen)
    named = {path.stem: path for path in _POLICIES.glob("*.toml")}
    sizes = tomllib.loads(named.get(policy, named["pretrained"]).read_text(encoding="utf-8"))
    kept = {key: value for key, value in table.items() if key not in ("model", "text")}
    return _over(_over(kept, sizes), chosen)


def _with_preset(table: Mapping[str, Any]) -> dict[str, Any]:
    """Put what a recipe says in [algorithm] over the method that its key `preset` names."""
    given = table.get("algorithm")
    if not isinstance(given, Mapping) or "preset" not in given:
        return dict(table)
    name = given["preset"]
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ConfigError(
            f"unknown algorithm {name!r}{did_you_mean(str(name), PRESETS)}; the known ones are "
            f"{known}"
        )
    rest = {key: value for key, value in given.items() if key != "preset"}
    return {**table, "algorithm": _over(asdict(PRESETS[name]), rest)}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Put one table over another; tables that both have are put over each other in turn."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        nested = isinstance(value, Mapping) and isinstance(inner, Mapping)
        result[key] = _over(result[key], value) if nested else value
    return result


def _find(name_or_file: str, beside: Collection[str]) -> Path:
    builtin = _FOLDER / f"{name_or_file}.toml"
    if name_or_file in builtin_recipes():
        return builtin
    path = Path(name_or_file)
    if path.suffix == ".toml" and path.is_file():
        return path
    if path.suffix == ".toml" or path.parent != Path():
        raise ConfigError(f"there is no recipe file {name_or_file}; give an existing .toml file")
    known = [*beside, *builtin_recipes()]
    raise ConfigError(
        f"unknown recipe {name_or_file!r}{did_you_mean(name_or_file, known)}; "
        f"the built-in ones are {', '.join(known)}; or give a .toml file"
    )
