"""Streams of tasks: once an epoch, exact after a restore; files with clear errors."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs.base import Task
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.prompts import PromptsConfig, TaskStream, load_tasks, read_tasks


def make_tasks(number: int) -> list[Task]:
    return [Task(f"task-{index}", {"index": index}) for index in range(number)]


def draw(stream: TaskStream, number: int) -> list[str]:
    return [stream.next().id for _ in range(number)]


SIZES, SEEDS, SHUFFLE = st.integers(1, 60), st.integers(0, 2**64), st.booleans()


@settings(max_examples=12)
@given(SIZES, SEEDS, SHUFFLE)
def test_each_task_comes_once_an_epoch(size: int, seed: int, shuffle: bool) -> None:
    stream = TaskStream(make_tasks(size), seed=seed, shuffle=shuffle)
    for epoch in range(2):
        ids = draw(stream, size)
        assert Counter(ids) == Counter(f"task-{index}#{epoch}" for index in range(size))


@settings(max_examples=12)
@given(SIZES, SEEDS, SHUFFLE, st.integers(0, 70))
def test_after_a_restore_the_same_tasks_follow(
    size: int, seed: int, shuffle: bool, drawn: int
) -> None:
    stream = TaskStream(make_tasks(size), seed=seed, shuffle=shuffle)
    draw(stream, drawn)
    saved = json.loads(json.dumps(stream.state()))
    expected = draw(stream, 15)
    resumed = TaskStream(make_tasks(size), seed=seed, shuffle=shuffle)
    resumed.restore(saved)
    assert resumed.state() == saved
    assert draw(resumed, 15) == expected


def test_the_order_depends_on_the_seed_and_the_epoch() -> None:
    def epochs(seed: int) -> list[list[str]]:
        stream = TaskStream(make_tasks(50), seed=seed)
        return [[task_id.split("#")[0] for task_id in draw(stream, 50)] for _ in range(3)]

    orders = epochs(0) + epochs(1) + epochs(2)
    assert len({tuple(order) for order in orders}) == 9
    assert epochs(1) == epochs(1)


def test_without_shuffling_the_order_is_that_of_the_tasks() -> None:
    stream = TaskStream(make_tasks(2), seed=0, shuffle=False)
    assert draw(stream, 4) == ["task-0#0", "task-1#0", "task-0#1", "task-1#1"]


def test_a_task_keeps_its_data() -> None:
    stream = TaskStream(make_tasks(5), seed=3)
    for _ in range(5):
        task = stream.next()
        assert task.id == f"task-{task.data['index']}#0"


@pytest.mark.parametrize(
    ("tasks", "seed", "shuffle", "said"),
    [
        (make_tasks(4), 7, True, "size was 3, is 4"),
        ([Task("a"), Task("b"), Task("c")], 7, True, "checksum was"),
        (make_tasks(3), 8, True, "seed was 7, is 8"),
        (make_tasks(3), 7, False, "shuffle was True, is False"),
    ],
)
def test_a_position_in_other_data_is_refused(
    tasks: list[Task], seed: int, shuffle: bool, said: str
) -> None:
    state = TaskStream(make_tasks(3), seed=7).state()
    other = TaskStream(tasks, seed=seed, shuffle=shuffle)
    with pytest.raises(ConfigError, match=f"belongs to other data: {said}"):
        other.restore(state)


def test_no_tasks_and_repeated_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="no tasks to train on, at least 1 is needed"):
        TaskStream([], seed=0)
    with pytest.raises(ConfigError, match="task 2: the id 'a' is already that of task 0"):
        TaskStream([Task("a"), Task("b"), Task("a")], seed=0)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (None, "found None; return a list of Task"),
        ((Task(str(n)) for n in range(3)), "found <generator"),
        ([Task("a"), {"id": "b"}], r"found \{'id': 'b'\};"),
        ("ab", "found 'a';"),
    ],
)
def test_what_is_no_sequence_of_tasks_is_refused(tasks: object, said: str) -> None:
    with pytest.raises(ConfigError, match=f"must be a sequence of Task, {said}"):
        TaskStream(tasks, seed=0)


def test_tasks_come_from_the_file_or_from_the_function(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "x", "n": 1}\n\n{"id": 2, "text": "\u2028ü"}\n', encoding="utf-8")
    expected = (Task("x", {"n": 1}), Task("2", {"text": "\u2028ü"}))
    assert read_tasks(file) == expected
    assert load_tasks(PromptsConfig(path=str(file)), make_tasks) == expected
    assert load_tasks(PromptsConfig(num_tasks=3), make_tasks) == make_tasks(3)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"tasks\.jsonl: no tasks"),
        (b"\n \n", r"tasks\.jsonl: no tasks"),
        (b'{"id": 1}\n{"id": ', r"tasks\.jsonl:2: not a JSON object"),
        (b'\n{"id": "\xff"}', r"tasks\.jsonl:2: not a JSON object"),
        (b"[1]", r"tasks\.jsonl:1: a task must be a JSON object, got \[1\]"),
        (b'{"name": "x"}', r"""tasks\.jsonl:1: a task needs an "id", got the keys \['name'\]"""),
        (b'{"id": ""}', r"tasks\.jsonl:1: an id must be a non-empty string or an integer"),
        (b'{"id": true}', r"tasks\.jsonl:1: an id must be .* got True"),
        (b'{"id": 1}\n{"id": "1"}', r"tasks\.jsonl:2: the id '1' is already that of .*:1"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_tasks(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.jsonl: cannot read the tasks: No such file"):
        read_tasks(tmp_path / "gone.jsonl")
    with pytest.raises(ConfigError, match="cannot read the tasks: Is a directory"):
        read_tasks(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the tasks: embedded null byte"):
        read_tasks("a\0b")


def test_num_tasks_is_checked() -> None:
    with pytest.raises(ConfigError, match="num_tasks must be >= 1, got 0"):
        PromptsConfig(num_tasks=0)


def test_importing_the_module_imports_neither_grain_nor_jax() -> None:
    script = "import headrace.pipeline.prompts, sys; print({'grain', 'jax'} & set(sys.modules))"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "set()"
