import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.observe.sinks import JsonlSink, to_json
from tests.fakes.full_disk import files_of_at_most

NUMBERS = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.text() | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4))
def test_what_is_written_is_read_back_line_by_line(records: list[dict[str, Any]]):
    lines = [to_json(record) for record in records]
    assert not any("\n" in line for line in lines)
    assert [json.loads(line) for line in lines] == records


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [float, np.float32, np.float64])
def test_numbers_that_json_lacks_become_null(value: float, kind: type):
    assert to_json({"a": [kind(value), 1.5]}) == '{"a": [null, 1.5]}'


def test_numpy_values_are_written_as_plain_ones():
    record = {"flag": np.bool_(True), "count": np.int32(3), "curve": np.array([1, 2], np.int32)}
    assert to_json(record) == '{"flag": true, "count": 3, "curve": [1, 2]}'


def test_value_that_json_cannot_hold_is_an_error():
    with pytest.raises(TypeError):
        to_json({"a": object()})


def test_sink_appends(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        sink = JsonlSink(path)
        sink.write({"step": step, "note": "Grüße\n"})
        sink.close()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_text_that_utf_8_lacks_is_escaped(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    sink = JsonlSink(path)
    sink.write({"text": "\udcffü\ud800"})
    sink.close()
    assert json.loads(path.read_bytes()) == {"text": "\udcffü\ud800"}


def test_a_full_disk_leaves_whole_lines(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    sink = JsonlSink(path)
    sink.write({"number": 0})
    with files_of_at_most(100), pytest.raises(OSError, match=r"large: '.*trajectories\.jsonl'"):
        sink.write({"text": "x" * 200})
    sink.write({"number": 1})
    sink.close()
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [0, 1]


def test_a_killed_process_leaves_whole_lines_but_perhaps_the_last(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    program = (
        "import sys, pathlib\n"
        "from headrace.pipeline.observe.sinks import JsonlSink\n"
        "sink = JsonlSink(pathlib.Path(sys.argv[1]))\n"
        "sink.write({'number': -1})\n"
        "print('ready', flush=True)\n"
        "for number in range(10**9):\n"
        "    sink.write({'number': number, 'text': 'x' * (number * 997 % 50_000)})\n"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while path.stat().st_size < 2_000_000:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    numbers = [json.loads(line)["number"] for line in whole.splitlines()]
    assert numbers == list(range(-1, len(numbers) - 1))
