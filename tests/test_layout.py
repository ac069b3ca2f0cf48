"""The shape of the repository: links, names, budgets."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("pipeline", "sharding", "envs")
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

MAX_FILE_LINES = 400
MAX_ADAPTER_LINES = 60
MAX_BODY_LINES = 50
MAX_POSITIONAL = 4
MAX_PARAMETERS = 8
MAX_CONFIG_FIELDS = 12
MAX_RECORD_FIELDS = 16
# How tokens are drawn is four numbers that everyone knows by these names beside the temperature.
MORE_FIELDS = {"RolloutConfig": 15, "Recipe": 18}  # a recipe has a section for each stage

# Optional packages, each imported by the one module that is about it.
EXTRAS = {
    "envs/adapters/aviary.py: aviary",
    "envs/adapters/gymnasium.py: gymnasium",
    "envs/adapters/gymnasium_words.py: gymnasium",
    "envs/adapters/gymnasium_words.py: gymnasium.envs.toy_text.frozen_lake",
    "envs/adapters/gymnasium_words.py: gymnasium.envs.toy_text.taxi",
    "envs/adapters/toy_text.py: gymnasium.envs.toy_text.frozen_lake",
    "envs/adapters/toy_text.py: gymnasium.envs.toy_text.taxi",
    "envs/adapters/mcp.py: mcp",
    "envs/adapters/mcp.py: mcp.types",
    "envs/adapters/openenv.py: trio_websocket",
    "envs/adapters/reasoning_gym.py: reasoning_gym",
    "envs/adapters/reasoning_gym.py: reasoning_gym.utils",
    "envs/adapters/textarena.py: textarena",
    "envs/rewards/mathematics.py: math_verify",
    "envs/sandbox/monty.py: pydantic_monty",
    "envs/sandbox/monty_call.py: pydantic_monty",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """All imports as (level, module); level 0 is absolute."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)


@pytest.mark.parametrize("package", PACKAGES)
def test_links_are_relative(package: str):
    link = ROOT / "headrace" / package
    assert link.is_symlink()
    assert link.readlink() == Path("..") / package


def test_imports_inside_the_packages_are_relative():
    found = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in MODULES
        for level, module in imports(path)
        if level == 0 and module.partition(".")[0] in ("headrace", *PACKAGES)
    }
    assert not found


@pytest.mark.parametrize(
    ("package", "others"), [("envs", {"trio"}), ("sharding", {"jax", "numpy"})]
)
def test_lowest_packages_need_little(package: str, others: set[str]):
    allowed = sys.stdlib_module_names | others
    found = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in MODULES
        if path.is_relative_to(ROOT / package)
        for level, module in imports(path)
        if level == 0 and module.partition(".")[0] not in allowed
    }
    assert found <= EXTRAS


def test_modules_named_by_the_table_of_stages_exist():
    text = ast.get_docstring(TREES[ROOT / "pipeline" / "__init__.py"])
    assert text is not None, "pipeline/__init__.py opens with the table of stages"
    names = re.findall(r"`([a-z_]+(?:[./][a-z_]+)*)/?`", text)
    places = [name.replace(".", "/") for name in names]
    missing = [
        place
        for place in places
        if not any(
            (base / place).is_dir() or (base / place).with_suffix(".py").is_file()
            for base in (ROOT, ROOT / "pipeline")
        )
    ]
    assert names
    assert not missing


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_files_named_by_the_documentation_exist(page: str):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+|(?:[a-z_]+/)*[a-z_]+\.py)`", text)
    missing = [
        name
        for name in named
        if not ((ROOT / name).exists() or (ROOT / "pipeline" / name).exists())
    ]
    assert not missing


def test_public_names_are_listed_once():
    names = headrace.__all__
    tree = ast.parse((ROOT / "headrace" / "__init__.py").read_text(encoding="utf-8"))
    imported = [
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    assert len(set(names)) == len(names)
    assert sorted(names) == sorted(str(name) for name in imported)


def test_import_does_not_need_jax():
    heavy = {"jax", "tokenizers", "safetensors", "gguf", "huggingface_hub", "jinja2"}
    program = f"import sys, headrace; sys.exit(not {heavy}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_files_fit_on_a_few_screens():
    sizes = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert not {path: size for path, size in sizes.items() if size > MAX_FILE_LINES}


def test_adapters_of_other_libraries_are_short():
    """Their lines of code; docstrings, comments and blank lines are free."""
    sizes = {}
    for path in (ROOT / "envs" / "adapters").glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        code = {n for n, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
                text = node.body[0]
                code -= {*range(text.lineno, (text.end_lineno or 0) + 1)}
        sizes[path.name] = len(code)
    assert len(sizes) > 6
    assert not {name: size for name, size in sizes.items() if size > MAX_ADAPTER_LINES}


def test_functions_fit_on_one_screen():
    sizes = {}
    for where, node in functions():
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if body:
            sizes[where] = (body[-1].end_lineno or 0) - body[0].lineno + 1
    assert not {where: size for where, size in sizes.items() if size > MAX_BODY_LINES}


def test_functions_have_few_parameters():
    found = []
    for where, node in functions():
        arguments = [*node.args.posonlyargs, *node.args.args]
        positional = [name for name in arguments if name.arg not in ("self", "cls")]
        total = len(positional) + len(node.args.kwonlyargs)
        if len(positional) > MAX_POSITIONAL or total > MAX_PARAMETERS:
            found.append(f"{where}: {len(positional)} positional, {total} in all")
    assert not found


def test_records_have_few_fields():
    found = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(item, ast.AnnAssign) for item in node.body)
                is_config = node.name.endswith("Config")
                most = MAX_CONFIG_FIELDS if is_config else MAX_RECORD_FIELDS
                if fields > MORE_FIELDS.get(node.name, most):
                    found.append(f"{path.relative_to(ROOT)} {node.name}: {fields}")
    assert not found


def test_broad_handlers_pass_the_error_on():
    """What catches everything must raise, or make a value of the error."""
    found = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node):
                inside = [child for statement in node.body for child in ast.walk(statement)]
                names = {child.id for child in inside if isinstance(child, ast.Name)}
                if not (node.name in names or any(isinstance(x, ast.Raise) for x in inside)):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found


def _is_broad(handler: ast.ExceptHandler) -> bool:
    kind = handler.type
    return kind is None or (
        isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")
    )


@pytest.mark.parametrize(
    "smell",
    [
        r"\bhasattr\(",
        r"\bgetattr\([^()]+,[^()]+,[^()]+\)",
        r"^\s*global\s",
        r"os\.environ|os\.getenv",
        r"^\s*print\(",
        r"\b(TODO|FIXME|XXX|HACK)\b",
        r"\basyncio\b",
    ],
)
def test_no_module_has(smell: str):
    own_programs = [
        ROOT / "pipeline" / "cli.py",
        ROOT / "pipeline/commands/messages.py",
        ROOT / "envs/asyncio_env.py",  # its code runs in processes of its own
        *(ROOT / "envs/sandbox/supervisor").iterdir(),
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in MODULES
        if path not in own_programs
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(smell, line)
    ]
    assert not found
