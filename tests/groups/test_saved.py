"""What a checkpoint makes of a ledger and of ready groups; see also the ledger's model."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from headrace.envs import Message, Task, ToolCall
from headrace.pipeline.groups.ledger import BatchRequested, Ledger, Schedule
from headrace.pipeline.groups.saved import Store, group_from, group_table, ledger_table
from headrace.pipeline.types import NO_VERSION, StopReason, Trajectory, TrajectoryGroup, Turn
from tests.groups.driving import admit_all, done, feed

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates, too
NUMBERS = st.floats(-1e6, 1e6)
NAMED = st.dictionaries(TEXT, NUMBERS, max_size=2)
CALLS = st.builds(
    ToolCall,
    TEXT,
    raw=TEXT,
    argument=st.none() | TEXT,
    id=TEXT,
    token_span=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
    problem=TEXT,
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["user", "assistant", "tool"]),
    TEXT,
    st.lists(CALLS, max_size=2).map(tuple),
    reasoning=TEXT,
    name=TEXT,
    tool_call_id=TEXT,
)


def arrays(dtype, shape, elements):
    return st_numpy.arrays(dtype, shape, elements=elements)


@st.composite
def trajectories(draw, *, reward, version=0, earlier=()):
    """One of any length; all of its tokens have one version."""
    spans = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3))
    ends = np.cumsum([sum(span) for span in spans])
    turns = tuple(
        Turn(int(end) - span[1], int(end), draw(NUMBERS), draw(NUMBERS), draw(NUMBERS))
        for span, end in zip(spans, ends, strict=True)
    )
    length = int(ends[-1]) + draw(st.integers(0, 2))
    mask = np.zeros(length, np.bool_)
    for turn in turns:
        mask[turn.start : turn.end] = True
    logprobs = draw(arrays(np.float32, length, st.floats(-50, 0, width=32)))
    mass = arrays(np.float32, length, st.floats(-5, 0, width=32))
    experts = arrays(np.int16, (length, 2, 1), st.integers(-1, 7))
    return Trajectory(
        tokens=draw(arrays(np.int32, length, st.integers(0, 2**31 - 1))),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, logprobs, np.float32(0)),
        policy_versions=np.where(mask, np.int32(version), np.int32(NO_VERSION)),
        turns=draw(st.sampled_from([turns, ()])),
        rewards=draw(NAMED),
        reward=reward,
        stop_reason=draw(st.sampled_from(StopReason)),
        info=draw(NAMED),
        messages=draw(st.lists(MESSAGES, max_size=2).map(tuple)),
        seconds=draw(NUMBERS),
        earlier=earlier,
        log_kept_mass=draw(st.none() | mass),
        experts=draw(st.none() | experts),
    )


@st.composite
def episodes(draw):
    """A trajectory, maybe of several samples."""
    reward = draw(NUMBERS)
    earlier = draw(st.lists(trajectories(reward=reward), max_size=1).map(tuple))
    return draw(trajectories(reward=reward, version=1, earlier=earlier))


def same(one, other):
    """Tell whether two trajectories are equal in every field, and every bit of their arrays."""
    assert [type(one), type(other)] == [Trajectory, Trajectory]
    for name in (field.name for field in fields(Trajectory)):
        mine, its = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            assert (mine.dtype, mine.shape) == (its.dtype, its.shape)
            assert mine.tobytes() == its.tobytes()
        elif name == "earlier":
            assert len(mine) == len(its)
            assert all(map(same, mine, its))
        else:
            assert (type(mine), mine) == (type(its), its), name
    return True


@given(st.lists(st.lists(episodes(), min_size=1, max_size=2), max_size=2))
def test_groups_come_back_bit_for_bit(members):
    groups = [
        TrajectoryGroup(index, Task(str(index), {"n": index}), tuple(each))
        for index, each in enumerate(members)
    ]
    store, tasks = Store(), {group.task.id: group.task for group in groups}
    tables = json.loads(json.dumps([group_table(group, store) for group in groups]))
    content = store.all_bytes()
    found = [group_from(table, Store(content), tasks.__getitem__) for table in tables]
    for group, again in zip(groups, found, strict=True):
        assert (again.index, again.task) == (group.index, group.task)
        assert all(map(same, group.trajectories, again.trajectories))


def test_a_ledger_is_not_saved_while_a_batch_is_under_way():
    ledger, _ = feed(admit_all(Ledger(Schedule(1))), done(0), BatchRequested())
    with pytest.raises(ValueError, match="no batch is under way, got 1 batches"):
        ledger_table(ledger)
