"""Files of rows are read by number, in an order that can be saved, and a bad line is named."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.offline.rows import BadRow
from headrace.pipeline.offline.sources import open_source, split
from headrace.pipeline.prompts import Cursor

TABLES = [{"n": n, "text": "é\u2028" * n} for n in range(10)]


def numbers(rows):
    return [row.table["n"] for row in rows]


@pytest.fixture
def jsonl(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(table, ensure_ascii=False) for table in TABLES]
    # A byte order mark, blank lines, and no newline at the end.
    path.write_bytes(("\ufeff" + "\n \r\n".join(lines)).encode())
    return path


def test_jsonl_finds_each_row_and_its_line(jsonl):
    source = open_source(jsonl)
    assert [source[index].table for index in range(len(source))] == TABLES
    assert source[3].where == f"{jsonl}:7"


def test_parquet_leaves_out_what_a_table_fills_in(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "name": "b"}]
    path = tmp_path / "rows.parquet"
    parquet.write_table(
        pyarrow.Table.from_pylist([{"messages": messages}, {"messages": None}]), path
    )
    source = open_source(path)
    assert [source[index].table for index in range(2)] == [{"messages": messages}, {}]
    assert source[1].where == f"{path}: row 2"


def test_array_records_are_read(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module")
    path = tmp_path / "rows.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for table in TABLES:
        writer.write(json.dumps(table).encode())
    writer.close()
    source = open_source(path)
    assert [source[index].table for index in range(len(source))] == TABLES


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"a", r"must end with one of \.jsonl"),
        ("rows.jsonl", b"", "no rows"),
        ("rows.jsonl", b"\n \n", "no rows"),
        ("rows.parquet", b"not one", "rows.parquet"),
        ("rows.array_record", b"not one", "rows.array_record"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_message(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        open_source(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot read the rows"):
        open_source(tmp_path / "none.jsonl")


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff"])
def test_a_bad_line_is_named(line, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"n": 0}\n' + line)
    with pytest.raises(BadRow, match=r"rows.jsonl:2: .*JSON object"):
        assert open_source(path)[1].table


def test_what_is_held_out_is_a_share_drawn_by_the_seed(jsonl):
    source = open_source(jsonl)
    train, held_out = split(source, 0.3, seed=1)
    parts = [numbers(part[i] for i in range(len(part))) for part in (train, held_out)]
    assert sorted(parts[0] + parts[1]) == list(range(10))
    assert len(parts[1]) == 3
    assert parts[1] != numbers(split(source, 0.3, seed=2)[1][i] for i in range(3))
    with pytest.raises(ConfigError, match="must leave rows on both sides"):
        split(source, 0.01, seed=0)


@settings(max_examples=8)
@given(st.integers(0, 25), st.integers(0, 9))
def test_each_row_comes_once_an_epoch_and_a_saved_position_goes_on(tmp_path_factory, taken, seed):
    path = tmp_path_factory.getbasetemp() / "shared.jsonl"
    path.write_text("\n".join(json.dumps(table) for table in TABLES))
    stream = Cursor(open_source(path), seed=seed, shuffle=True)
    before = numbers(stream.take(taken))
    state = stream.state()
    after = numbers(stream.take(30 - taken))
    epochs = [sorted((before + after)[start : start + 10]) for start in (0, 10, 20)]
    assert epochs == [list(range(10))] * 3
    assert stream.epochs == 3.0
    again = Cursor(open_source(path), seed=seed, shuffle=True)
    again.restore(state)
    assert numbers(again.take(30 - taken)) == after
    with pytest.raises(ConfigError, match="belongs to other data"):
        Cursor(open_source(path), seed=seed + 1, shuffle=True).restore(state)
