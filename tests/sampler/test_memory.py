"""The memory of one shard against naive holders: counts, order of eviction, what comes back."""

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.pipeline.sampler.memory import HOST_SHARE, Memory
from headrace.pipeline.sampler.moves import Duplicate, Extract, HostCopy, Insert
from headrace.pipeline.sampler.pages import BIN
from headrace.pipeline.sampler.sequence import Sequence
from headrace.pipeline.types import Int32s
from tests.sampler.conservation import assert_conserved, held

PAGES, SIZE = 9, 2
LONGEST = 7
VERSIONS = 2
Key = tuple[int, int]


class Job(NamedTuple):
    """A request with a row, of a trajectory."""

    key: Key
    tokens: Int32s
    version: int
    sequence: Sequence


class Kept(NamedTuple):
    """An idle trajectory, as the model remembers it."""

    tokens: Int32s
    sequence: Sequence


class Holders(RuleBasedStateMachine):
    """Requests that begin, grow, are parked, end, and go on.

    What a page holds is kept beside it, as a list of cells, and moved as the moves say.
    """

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(PAGES, SIZE)
        self.cells: list[list[Any]] = [[None] * SIZE for _ in range(PAGES)]
        self.jobs: list[Job] = []
        self.parked: list[Job] = []
        self.idle: dict[Key, Kept] = {}  # the longest idle one first
        self.lost: set[Key] = set()
        self.keys = 0

    # What the device does

    def carry_out(self) -> None:
        for move in self.memory.take_moves():
            assert move.shard == 0
            if isinstance(move, Extract):
                assert BIN not in move.pages
                move.copy.data = [list(self.cells[page]) for page in move.pages]
            elif isinstance(move, Insert):
                for page, cells in zip(move.pages, move.copy.data, strict=True):
                    self.cells[page] = list(cells)
            else:
                assert isinstance(move, Duplicate)
                self.cells[move.target] = list(self.cells[move.source])

    def write(self, job: Job, first: int, end: int) -> None:
        for position in range(first, end):
            page = job.sequence.pages[position // SIZE]
            self.cells[page][position % SIZE] = int(job.tokens[position]), job.version

    def read(self, sequence: Sequence, count: int) -> list[Any]:
        if sequence.copy is not None:
            pages = sequence.copy.data
        else:
            pages = [self.cells[page] for page in sequence.pages]
        return [cell for cells in pages for cell in cells][:count]

    def text_of(self, tokens: Int32s, version: int, count: int) -> list[Any]:
        return [(token, version) for token in tokens[:count].tolist()]

    # What the scheduler does

    @rule(
        tokens=st.lists(st.integers(0, 1), max_size=LONGEST),
        version=st.integers(0, VERSIONS - 1),
        pinned=st.booleans(),
        more=st.integers(0, 3),
        reserve=st.integers(0, 2),
    )
    def begin(
        self, tokens: list[int], version: int, pinned: bool, more: int, reserve: int
    ) -> None:
        text, count = np.array(tokens, np.int32), -(-len(tokens) // SIZE)
        found = self.memory._index.find(version, text)
        assert self.memory.knows(text, version) == len(found)
        copied = len(found) == count and len(text) % SIZE > 0
        pages = -(-(len(tokens) + more) // SIZE)
        needed = pages - sum(self.is_busy(page) for page in found) + copied
        fits = needed + reserve <= self.memory.available
        before = self.memory.available
        sequence = self.memory.begin(
            text, len(text) + more, version, pinned=pinned, reserve=reserve
        )
        self.carry_out()
        assert (sequence is not None) == fits
        if sequence is None:
            return
        assert self.memory.available == before - needed
        assert sequence.pages[: len(found)] == found
        assert len(sequence.pages) == pages
        filled = self.memory.advance(sequence, len(text))
        assert self.read(sequence, filled) == self.text_of(text, version, filled)
        self.keys += 1
        self.jobs.append(Job((self.keys, 0), text, version, sequence))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), some=st.integers(1, 3))
    def prefill(self, data: Any, some: int) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        first = self.memory.advance(job.sequence, len(job.tokens))
        end = min(first + some, len(job.tokens))
        if first < end:
            self.memory.mark(job.sequence, end, job.version)
            self.write(job, first, end)

    @precondition(lambda self: self.filled())
    @rule(data=st.data(), positions=st.integers(1, LONGEST + 2))
    def decode(self, data: Any, positions: int) -> None:
        """Grow by as many positions as there are pages for."""
        index = data.draw(st.sampled_from(self.filled()))
        job = self.jobs[index]
        self.memory.own_page(job.sequence)
        self.carry_out()
        missing = max(0, -(-positions // SIZE) - len(job.sequence.pages))
        fits = missing <= self.memory.available
        before = self.memory.available
        if fits:
            job.sequence.pages += self.memory.take(missing)
        self.carry_out()
        assert self.memory.available == before - missing * fits
        if fits and positions > len(job.tokens):
            valid = len(job.tokens)
            more = np.arange(valid, positions, dtype=np.int32) + 10
            job = job._replace(tokens=np.concatenate([job.tokens, more]))
            self.write(job, valid, positions)
            job.sequence.write(positions, job.version)
            self.jobs[index] = job

    def filled(self) -> list[int]:
        """Who may decode."""
        return [
            index
            for index, job in enumerate(self.jobs)
            if self.memory.advance(job.sequence, len(job.tokens)) == len(job.tokens)
        ]

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST),
        version=st.integers(0, VERSIONS - 1),
        pinned=st.booleans(),
    )
    def whole_turn(self, tokens: list[int], version: int, pinned: bool) -> None:
        """From the first token on to the end, if there is memory for it."""
        text = np.array(tokens, np.int32)
        sequence = self.memory.begin(text, len(text), version, pinned=pinned, reserve=0)
        self.carry_out()
        if sequence is None:
            return
        self.keys += 1
        job = Job((self.keys, 0), text, version, sequence)
        first = self.memory.advance(sequence, len(text))
        if first < len(text):
            self.memory.mark(sequence, len(text), version)
            self.write(job, first, len(text))
        self.keep(job)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.memory.close(job.sequence)

    @precondition(lambda self: self.filled())
    @rule(data=st.data())
    def end(self, data: Any) -> None:
        self.keep(self.jobs.pop(data.draw(st.sampled_from(self.filled()))))

    def keep(self, job: Job) -> None:
        self.memory.own_page(job.sequence)
        self.carry_out()
        tokens = np.append(job.tokens, np.int32(99))  # drawn last, in no page
        self.memory.keep(job.key, job.sequence, tokens)
        self.idle[job.key] = Kept(tokens, job.sequence)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def park(self, data: Any) -> None:
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        self.memory.park(job.sequence)
        self.carry_out()
        self.parked.append(job)

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), reserve=st.integers(0, 2))
    def bring_back(self, data: Any, reserve: int) -> None:
        job = data.draw(st.sampled_from(self.parked))
        pages = max(job.sequence.num_pages, -(-len(job.tokens) // SIZE))
        fits = pages + reserve <= self.memory.available
        assert self.memory.bring_back(job.sequence, len(job.tokens), reserve=reserve) == fits
        if fits:
            assert len(job.sequence.pages) == pages
            self.parked.remove(job)
            self.jobs.append(job)
        self.carry_out()

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), more=st.integers(0, 3), reserve=st.integers(0, 2))
    def go_on(self, data: Any, more: int, reserve: int) -> None:
        key = data.draw(st.sampled_from(list(self.idle)))
        tokens, sequence = self.idle[key]
        text = np.append(tokens, np.int32(5))
        version = sequence.version
        memory = self.memory
        assert memory.continues(key, text, version) is sequence
        assert memory.continues(key, text, None) is sequence
        assert memory.continues(key, text, VERSIONS) is None
        assert memory.continues((-1, 0), text, version) is None
        assert memory.continues(key, tokens, version) is sequence
        assert memory.continues(key, tokens[:-1], version) is None
        text[data.draw(st.integers(0, len(tokens) - 1))] += 1
        assert memory.continues(key, text, version) is None
        on_device = sequence.copy is None
        needed = (
            sum(not self.is_busy(page) for page in sequence.pages)
            if on_device
            else sequence.num_pages
        )
        positions = len(tokens) - 1 + more
        needed += max(0, -(-positions // SIZE) - sequence.num_pages)
        fits = needed + reserve <= memory.available
        assert memory.resume(key, positions, reserve=reserve) == fits
        self.carry_out()
        if fits:
            del self.idle[key]
            assert version is not None
            self.jobs.append(Job(key, tokens[:-1], version, sequence))

    @rule(version=st.integers(0, VERSIONS - 1))
    def forget(self, version: int) -> None:
        self.memory.forget(version)
        assert not self.memory._index.of_version(version)
        for key, (_, sequence) in list(self.idle.items()):
            if sequence.pinned and sequence.version == version:
                del self.idle[key]

    @rule()
    def forget_idle(self) -> None:
        self.memory.forget_idle()
        self.idle = {key: one for key, one in self.idle.items() if one.sequence.pinned}

    @invariant()
    def nobody_lost_what_is_in_the_pages(self) -> None:
        here = self.memory._idle.keys()
        gone = [key for key in self.idle if key not in here]
        on_device = [key for key in self.idle if key in here and not self.is_on_host(key)]
        # Who has left the device, was there the longest.
        order = list(self.idle)
        assert not on_device or all(order.index(key) < order.index(on_device[0]) for key in gone)
        for key in gone:
            assert not self.idle.pop(key).sequence.pinned
            assert self.memory.lost(key)
            assert not self.memory.lost(key)
        assert list(self.idle) == list(here)
        assert self.memory.idle == len(self.idle)
        for tokens, sequence in self.idle.values():
            self.check(sequence, tokens, len(tokens) - 1)
        for job in [*self.jobs, *self.parked]:
            self.check(job.sequence, job.tokens, job.sequence.valid)

    def is_busy(self, page: int) -> bool:
        return any(page in job.sequence.held for job in self.jobs)

    def is_on_host(self, key: Key) -> bool:
        return self.idle[key].sequence.copy is not None

    def check(self, sequence: Sequence, tokens: Int32s, count: int) -> None:
        version = sequence.version
        assert version is not None
        assert self.read(sequence, count) == self.text_of(tokens, version, count)
        assert sequence.copy is None or isinstance(sequence.copy, HostCopy)

    @invariant()
    def pages_are_conserved(self) -> None:
        assert not self.memory._moves
        assert_conserved(self.memory, [held(job.sequence) for job in self.jobs])
        assert max(self.memory._filled) <= SIZE


TestHolders = Holders.TestCase
TestHolders.settings = settings(max_examples=60, stateful_step_count=40)


def test_who_cannot_go_on_yet_keeps_its_place_in_the_order_of_eviction() -> None:
    memory = Memory(pages=6, page_tokens=2)
    for member in range(2):
        tokens = np.array([member, 1, 1], np.int32)
        sequence = memory.begin(tokens[:-1], 2, 0, pinned=False, reserve=0)
        assert sequence is not None
        memory.keep((member, 0, 0), sequence, tokens)
    assert not memory.resume((0, 0, 0), 3, reserve=4)
    assert list(memory._idle) == [(0, 0, 0), (1, 0, 0)]
    assert memory.resume((0, 0, 0), 3, reserve=3)


def test_a_sequence_of_several_versions_is_not_kept_for_pinned_requests() -> None:
    """Else it would never be forgotten: no version that is dropped is its own."""
    sequence = Sequence(version=1, pinned=True)
    sequence.write(3, 1)
    assert (sequence.version, sequence.pinned) == (1, True)
    sequence.write(5, 2)
    assert (sequence.version, sequence.pinned) == (None, False)


def test_the_host_keeps_so_many_pinned_trajectories_and_the_others_are_counted_as_lost() -> None:
    memory = Memory(pages=4, page_tokens=2)
    count = HOST_SHARE * memory.capacity + 10  # of one page each
    for member in range(count):
        tokens = np.array([member, 1], np.int32)
        sequence = memory.begin(tokens[:-1], 1, 0, pinned=True, reserve=0)
        assert sequence is not None
        memory.keep((member, 0, 0), sequence, tokens)
        memory.take_moves()
    on_device = memory.capacity
    assert memory.idle == HOST_SHARE * memory.capacity + on_device
    lost = [memory.lost((member, 0, 0)) for member in range(count)]
    assert lost == [member < count - memory.idle for member in range(count)]
    assert sum(lost) == 10 - on_device
