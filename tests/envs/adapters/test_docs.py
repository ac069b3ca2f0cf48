"""The examples of docs/adapters.md run as they stand, where the library is there."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from headrace.envs import EnvSpec, check_env, load_env
from tests.fakes.local_server import local_server

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [
    (heading, code)
    for heading, text in SECTIONS
    for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
]
NEEDED = {
    "Gymnasium": "gymnasium",
    "reasoning-gym": "reasoning_gym",
    "TextArena": "textarena",
    "aviary": "aviary.core",
    "OpenEnv": "openenv",
    "Tools of MCP servers": "mcp.server.mcpserver",  # of version 2
}
SERVERS = {"OpenEnv": "openenv_server.py", "Tools of MCP servers": "mcp_server.py"}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Make a module of an example, with a server where it needs one; return its SPEC."""
    monkeypatch.syspath_prepend(tmp_path)
    with ExitStack() as exits:

        def load(heading: str, code: str) -> EnvSpec:
            if heading in SERVERS:
                server = ROOT / "tests" / "fakes" / SERVERS[heading]
                port = exits.enter_context(local_server(server))
                code = code.replace("localhost:8000", f"127.0.0.1:{port}")
            name = f"example_{NEEDED[heading].replace('.', '_')}"
            (tmp_path / f"{name}.py").write_text(code)
            exits.callback(sys.modules.pop, name, None)
            return importlib.import_module(name).SPEC

        yield load


def test_every_library_has_an_example() -> None:
    assert {heading for heading, _ in EXAMPLES} == set(NEEDED)
    assert PAGE.count("```python") == len(EXAMPLES)


@pytest.mark.parametrize(("heading", "code"), EXAMPLES, ids=[heading for heading, _ in EXAMPLES])
def test_an_example_keeps_the_protocol(heading: str, code: str, load) -> None:
    pytest.importorskip(NEEDED[heading])
    spec = load(heading, code)
    trio.run(check_env, spec.make, spec.tasks("train", 2, 0))


def test_the_recipe_names_what_there_is() -> None:
    pytest.importorskip("gymnasium")
    (recipe,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert load_env(tomllib.loads(recipe)["env"]["name"]).tasks("train", 1, 0)
