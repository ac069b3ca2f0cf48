"""Environments by name, and the public names of the package."""

import ast
import random
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import envs
from headrace.envs import BUILTIN, EnvConfig, LatencyConfig, Reward, build_env, load_env


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"user_env_{random.getrandbits(64):x}"
    source = "from headrace.envs import load_env\nspec = load_env('calculator')\nwrong = 3\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_builtin_names_and_paths(user_module: str) -> None:
    assert load_env("guess_number") is BUILTIN["guess_number"]
    assert load_env(f"{user_module}:spec") is BUILTIN["calculator"]


def test_a_wrong_name_says_what_to_use(user_module: str) -> None:
    messages = {
        "calculater": "did you mean 'calculator'",
        "zzz": "use calculator, code, frozen_lake, .*, search, .*, or package.module:attribute",
        ":spec": "unknown env.name",
        ".relative:spec": "unknown env.name '.relative:spec'",
        "no_such_package.module:spec": "can't be imported: ModuleNotFoundError: No module named",
        f"{user_module}:spek": "the attribute 'spek' is missing",
        f"{user_module}:wrong": "'wrong' is of type int",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message):
            load_env(name)


def test_a_library_that_is_not_there_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # whether it is there or not
    monkeypatch.delitem(sys.modules, "headrace.envs.adapters.reasoning_gym", raising=False)
    install = r"'reasoning_gym/chain_sum': .*; pip install 'headrace\[reasoning-gym\]'$"
    with pytest.raises(ValueError, match=install):
        load_env("reasoning_gym/chain_sum")
    for unknown in ("gymnasium/", "/chain_sum", "gym/Taxi-v4"):
        with pytest.raises(
            ValueError, match=r"unknown env\.name .* gymnasium/\.\.\., reasoning_gym"
        ):
            load_env(unknown)


@pytest.mark.parametrize("error", ["SystemExit(3)", "SyntaxError('odd')", "KeyError('odd')"])
def test_a_module_that_fails_is_named_with_its_error(error: str, user_module: str) -> None:
    Path(sys.path[0], f"{user_module}.py").write_text(f"raise {error}\n")
    kind = error.partition("(")[0]
    with pytest.raises(ValueError, match=f"'{user_module}' can't be imported: {kind}") as caught:
        load_env(f"{user_module}:spec")
    assert type(caught.value.__cause__).__name__ == kind


def test_latency_is_put_around_the_environment() -> None:
    plain = build_env(EnvConfig("calculator"))
    slow = build_env(EnvConfig("calculator", LatencyConfig("constant", mean_seconds=1.0)))
    assert plain.make is BUILTIN["calculator"].make
    assert slow.make is not plain.make
    assert slow.best_reward == plain.best_reward


def test_best_rewards_are_reached_by_someone_and_exceeded_by_none() -> None:
    for name, spec in BUILTIN.items():
        assert 0 < spec.best_reward <= 1, name
        assert spec.demonstrate is not None


def test_every_public_name_is_a_re_export() -> None:
    tree = ast.parse(Path(envs.__file__).read_text())
    imported = [a for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names]
    assert all(alias.asname == alias.name for alias in imported)
    assert all(alias.name in vars(envs) for alias in imported)


OPTIONAL = {  # extras, each inside a module of its own
    "adapters/aviary.py": "aviary",
    "adapters/gymnasium.py": "gymnasium",
    "adapters/gymnasium_words.py": "gymnasium",
    "adapters/toy_text.py": "gymnasium",
    "adapters/mcp.py": "mcp",
    "adapters/openenv.py": "trio_websocket",
    "adapters/reasoning_gym.py": "reasoning_gym",
    "adapters/textarena.py": "textarena",
    "rewards/mathematics.py": "math_verify",
    "sandbox/monty.py": "pydantic_monty",
    "sandbox/monty_call.py": "pydantic_monty",
}


def test_the_package_imports_only_the_standard_library_and_trio() -> None:
    root = Path(envs.__file__).parent
    for path in root.rglob("*.py"):
        extra = OPTIONAL.get(path.relative_to(root).as_posix(), "trio")
        allowed = {*sys.stdlib_module_names, "trio", extra}
        depth = len(path.relative_to(root).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            if isinstance(node, ast.ImportFrom):
                inside = 1 <= node.level <= depth
                assert inside or str(node.module).split(".")[0] in allowed, path


def test_rewards_that_are_added_to_a_built_in_environment_hold_for_chat_models_too() -> None:
    reward = Reward("length", len)
    rewarded = replace(BUILTIN["calculator"], rewards=(reward,))
    assert rewarded.for_chat is not None
    sys.modules["rewarded"] = types.SimpleNamespace(SPEC=rewarded)  # type: ignore[assignment]
    try:
        for_chat = build_env(EnvConfig("rewarded:SPEC"), for_chat=True)
    finally:
        del sys.modules["rewarded"]
    assert for_chat.rewards == (reward,)
    assert for_chat.tools == rewarded.for_chat.tools
