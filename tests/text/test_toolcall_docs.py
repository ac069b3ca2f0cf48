"""docs/tool_calls.md says what is there."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args

from headrace.envs import CallStatus
from headrace.pipeline.text.toolcalls import FORMATS, CallLimits, parse_turn
from tests.text.corpus import StandIn
from tests.text.test_toolcall_corpus import CASES, KNOWN_DIFFERENCES

PAGE = (Path(__file__).parents[2] / "docs" / "tool_calls.md").read_text()


def first_cells(heading: str) -> list[str]:
    """Return the names in the first column of the table under a heading."""
    table = PAGE.split(heading)[1].split("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[1:]]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_every_status_and_every_format_is_listed() -> None:
    assert first_cells("| status | meaning |") == [*get_args(CallStatus)]
    assert sorted(first_cells("| name | models | a call |")) == sorted(FORMATS)


def test_the_numbers() -> None:
    total, failed = (Counter(name.split("/")[0] for name in names) for names in (
        [case.fixture.id for case in CASES], KNOWN_DIFFERENCES))  # fmt: skip
    table = PAGE.split("| deepseek | gemma4 |")[1].split("\n\n")[0]
    found = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+)", table)]
    assert found == [(total[name] - failed[name], total[name]) for name in sorted(total)]
    limits = CallLimits()
    shown = f"({limits.max_characters:,} characters, {limits.max_depth} deep, {limits.max_calls} "
    assert shown in PAGE


def test_the_format_of_your_own_works() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    made: dict[str, Any] = {}
    exec(code, made)
    tokenizer = StandIn(["<call>", "</call>", "<|im_end|>"])
    text = '<think>t</think>c<call>{"name": "f", "arguments": {"a": "</call>"}}</call><|im_end|>'
    turn = parse_turn(tokenizer.markup(text), made["MINE"], tokenizer)
    assert (turn.reasoning, turn.content) == ("t", "c")
    assert [(call.status, call.arguments) for call in turn.calls] == [("ok", {"a": "</call>"})]
