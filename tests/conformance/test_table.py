"""docs/conformance.md names tests that exist, and every test of a fault."""

import ast
import re
from collections import defaultdict

from tests.test_train import ROOT

FAULTS = range(1, 31)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NUMBERS = re.compile(r"test_conformance_((?:\d+_)+)")


def rows():
    """The tests that the table names, by the number of the fault."""
    page = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\d+) \|(.*)$", page, re.MULTILINE)
    assert [int(number) for number, _ in found] == [*FAULTS]
    return {int(number): set(NAMED.findall(text)) for number, text in found}


def names_of(path):
    return {
        node.name
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.FunctionDef)
    }


def test_the_tests_that_the_table_names_exist():
    for number, named in rows().items():
        assert named, f"fault {number} has no test"
        gone = [(path, name) for path, name in named if name not in names_of(ROOT / path)]
        assert not gone


def test_the_table_names_all_tests_of_a_fault():
    written = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        if "test_conformance_" in path.read_text(encoding="utf-8"):
            for name in names_of(path):
                for number in re.findall(r"\d+", "".join(NUMBERS.findall(name))):
                    written[int(number)].add((str(path.relative_to(ROOT)), name))
    table = rows()
    missing = {number: tests - table[number] for number, tests in written.items()}
    assert not {number: tests for number, tests in missing.items() if tests}
