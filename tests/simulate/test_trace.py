"""Recorded episodes come back whole, and the same ones whatever the order."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.simulate.trace import (
    RecordedEpisode,
    RecordedTurn,
    Replay,
    Trace,
    read_trace,
)


def record(group, member, turns, *, prompt=10):
    tokens = prompt + sum(sampled + observed for sampled, observed, _ in turns)
    return {"step": 1, "group": group, "member": member, "tokens": tokens, "turns": turns}


def write(path, records):
    path.write_text("".join(json.dumps(line) + "\n" for line in records), encoding="utf-8")
    return path


def test_groups_turns_and_prompts_are_read_back(tmp_path):
    lines = [
        record(7, 0, [[5, 3, 0.25], [2, 0, 0]], prompt=11),
        record(3, 0, [[1, 0, 1.5]]),
        record(7, 1, [[4, 1, 0.0]], prompt=11),
        record(3, 1, []),  # failed before its first turn
    ]
    trace = read_trace(write(tmp_path / "t.jsonl", lines))
    long = RecordedEpisode(11, (RecordedTurn(5, 3, 0.25), RecordedTurn(2, 0, 0.0)))
    assert trace.groups == (
        (long, RecordedEpisode(11, (RecordedTurn(4, 1, 0.0),))),
        (RecordedEpisode(10, (RecordedTurn(1, 0, 1.5),)),),
    )
    assert trace.left_out == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", r"line 2 of .*t\.jsonl .*it has no 'group'"),
        ("[]", "it has no 'group'"),
        ('{"group": 0, "tokens": 5}', "it has no 'turns'"),
        ('{"group": 0, "turns": [[1, 1, 0]]}', "it has no 'tokens'"),
        ('{"group": 0, "tokens": 1, "turns": [[1, 1, 0]]}', "fewer than those of its turns"),
        ('{"group": 0, "tokens": 9, "turns": [[0, 1, 0]]}', "0 sampled and 1 observed"),
        ('{"group": 0, "tokens": 9, "turns": [[1, 1.5, 0]]}', r"1\.5 is no whole number"),
        ('{"group": 0, "tokens": 9, "turns": [[true, 1, 0]]}', "True is no whole number"),
        ('{"group": 0, "tokens": 9, "turns": [[1, 1, -1]]}', r"took -1\.0 seconds"),
        ('{"group": 0, "tokens": 9, "turns": [[1, 1, NaN]]}', "took nan seconds"),
        ('{"group": 0, "tokens": 9, "turns": [[1, 1, "x"]]}', "could not convert"),
        ('{"group": 0, "tokens": 9, "turns": [[1, 1, null]]}', "float"),
        ('{"group": 0, "tokens": 9, "turns": [[1, 1]]}', r"not \[1, 1\]"),
        ('{"group": 0, "tokens": 9, "turns": 3}', "line 2"),
        ('{"group": 0, "tokens": "9", "turns": [[1, 1, 0]]}', "'9' is no whole number"),
        ('{"group": [0], "tokens": 9, "turns": [[1, 1, 0]]}', r"\[0\] is no whole number"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, why):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(record(0, 0, [[1, 0, 0.0]])) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=why):
        read_trace(path)


def test_files_that_are_missing_or_empty_or_no_text_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"can't read .*no\.jsonl"):
        read_trace(tmp_path / "no.jsonl")
    with pytest.raises(ConfigError, match="at least one episode"):
        read_trace(write(tmp_path / "empty.jsonl", []))
    with pytest.raises(ConfigError, match="at least one episode"):
        read_trace(write(tmp_path / "failed.jsonl", [record(0, 0, [])]))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="can't read"):
        read_trace(tmp_path / "binary.jsonl")


TURNS = st.builds(RecordedTurn, st.integers(1, 9), st.integers(0, 9), st.floats(0, 60))
EPISODES = st.builds(
    RecordedEpisode, st.integers(1, 99), st.lists(TURNS, min_size=1, max_size=4).map(tuple)
)
TRACES = st.lists(
    st.lists(EPISODES, min_size=1, max_size=3).map(tuple), min_size=1, max_size=5
).map(lambda groups: Trace(tuple(groups)))
ASKED = st.lists(
    st.tuples(st.text("abc", max_size=5), st.integers(0, 2**31)), min_size=1, max_size=9
)


@given(TRACES, ASKED, st.integers(0, 2**31))
def test_an_episode_is_replayed_as_a_whole_and_a_group_from_one_group(trace, asked, seed):
    replay = Replay(trace, seed)
    for name, member in asked:
        task = Task(name)
        course = replay.course(task, member)
        turns = zip(
            course.sampled_tokens, course.observed_tokens, course.latency_seconds, strict=True
        )
        episode = RecordedEpisode(
            course.prompt_tokens, tuple(RecordedTurn(*turn) for turn in turns)
        )
        sibling = replay.episode(task, member + 1)
        assert any(episode in group and sibling in group for group in trace.groups)


@given(TRACES, ASKED, st.integers(0, 2**31))
def test_order_and_repetition_change_nothing(trace, asked, seed):
    one, other = Replay(trace, seed), Replay(trace, seed)
    first = [one.episode(Task(name), member) for name, member in asked]
    backwards = [other.episode(Task(name), member) for name, member in reversed(asked)]
    assert first == backwards[::-1]
    assert first == [one.episode(Task(name), member) for name, member in asked]
    elsewhere = pickle.loads(pickle.dumps(one))
    assert first == [elsewhere.episode(Task(name), member) for name, member in asked]


def test_every_recorded_episode_is_drawn_about_equally_often_and_seeds_differ():
    episodes = [RecordedEpisode(size, (RecordedTurn(1, 0, 0.0),)) for size in range(8)]
    trace = Trace(tuple((a, b) for a, b in zip(episodes[::2], episodes[1::2], strict=True)))
    replay = Replay(trace, 0)
    keys = [(Task(str(task)), member) for task in range(1000) for member in range(4)]
    drawn = [replay.episode(*key).prompt_tokens for key in keys]
    counts = [drawn.count(size) for size in range(8)]
    assert min(counts) > 350  # of 4,000 for 8 episodes
    other = Replay(trace, 1)
    assert drawn[:50] != [other.episode(*key).prompt_tokens for key in keys[:50]]
