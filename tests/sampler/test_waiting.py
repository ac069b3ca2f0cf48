"""The queue of waiting requests against a sorted list."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.sampler.occupant import Occupant
from headrace.pipeline.sampler.waiting import STALE_ENTRIES, WaitingQueue
from headrace.pipeline.types import SampleRequest

SHARDS = 3
REQUEST = SampleRequest(np.zeros(1, np.int32), 1, (), (0, 0))
Actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("add again"), st.integers(0, 9)),
        st.tuples(st.just("bind"), st.integers(0, SHARDS - 1)),
    ),
    max_size=40,
)
Shards = st.sets(st.integers(0, SHARDS - 1))


@given(Actions, st.lists(Shards, min_size=1, max_size=4))
def test_the_first_is_the_smallest_rank_of_those_that_wait_for_one_of_the_shards(
    actions: list[tuple[str, int]], asked: list[set[int]]
) -> None:
    queue = WaitingQueue(SHARDS)
    waiting: dict[int, Occupant] = {}
    gone: list[Occupant] = []
    bound: dict[int, int] = {}  # shards, by ticket
    for kind, value in actions:
        if kind == "add":
            ticket = len(waiting) + len(gone)
            waiting[ticket] = Occupant(ticket, REQUEST, (value, ticket), 2, REQUEST.tokens)
            queue.add(waiting[ticket])
        elif kind == "remove":
            removed = queue.remove(value)
            assert removed is waiting.pop(value, None)
            gone += [] if removed is None else [removed]
            bound.pop(value, None)
        elif kind == "add again" and value < len(gone):  # it had a row, and was parked
            occupant = gone.pop(value)
            waiting[occupant.ticket] = occupant
            queue.add(occupant)
        elif kind == "bind":
            first = queue.first(range(SHARDS))
            if first is not None:
                queue.bind(first, value)
                bound[first.ticket] = value
        assert len(queue) == len(waiting)
        assert set(queue) == set(waiting.values())
        for shards in asked:
            assert queue.first(shards) is first_of(waiting, bound, shards)


def first_of(waiting: dict[int, Occupant], bound: dict[int, int], shards: set[int]) -> Any:
    allowed = [one for one in waiting.values() if bound.get(one.ticket) in {None, *shards}]
    return min(allowed, key=lambda one: one.rank, default=None)


def test_what_has_left_is_forgotten() -> None:
    queue = WaitingQueue(SHARDS)
    for ticket in range(10 * STALE_ENTRIES):
        occupant = Occupant(ticket, REQUEST, (0, ticket), 2, REQUEST.tokens)
        queue.add(occupant)
        queue.bind(occupant, ticket % SHARDS)
        queue.remove(ticket)
        assert queue.first(()) is None
    assert not queue._line_of
    assert all(len(line) <= STALE_ENTRIES + 2 for line in queue._lines.values())
