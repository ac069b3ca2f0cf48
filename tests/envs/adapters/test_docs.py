"""The examples of docs/adapters.md run as they stand, where the library is there."""

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from headrace.envs import EnvSpec, check_env
from tests.fakes.local_server import local_server

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
EXAMPLE = r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```"
EXAMPLES = dict(re.findall(EXAMPLE, PAGE, re.MULTILINE | re.DOTALL))
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

        def load(heading: str) -> EnvSpec:
            code = EXAMPLES[heading]
            if heading in SERVERS:
                server = ROOT / "tests" / "fakes" / SERVERS[heading]
                port = exits.enter_context(local_server(server))
                code = code.replace("localhost:8000", f"127.0.0.1:{port}")
            name = f"example_{NEEDED[heading].replace('.', '_')}"
            (tmp_path / f"{name}.py").write_text(code)
            exits.callback(sys.modules.pop, name, None)
            return importlib.import_module(name).SPEC

        yield load


def test_every_library_has_one_example() -> None:
    assert set(EXAMPLES) == set(NEEDED)
    assert PAGE.count("```python") == len(NEEDED)


@pytest.mark.parametrize("heading", NEEDED)
def test_an_example_keeps_the_protocol(heading: str, load) -> None:
    pytest.importorskip(NEEDED[heading])
    spec = load(heading)
    trio.run(check_env, spec.make, spec.tasks("train", 2, 0))
