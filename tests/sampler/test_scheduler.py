"""The scheduler against a plain simulation of the device."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.rows import PrefillChunk, RowUpdate
from headrace.pipeline.sampler.scheduler import DecodeDispatch, SampledBlock, Scheduler
from headrace.pipeline.types import (
    Bools,
    Completion,
    FinishReason,
    Float32s,
    Int32s,
    SampleRequest,
)

CONFIG = SamplerConfig(
    rows=3, context_tokens=12, decode_tokens=2, prefill_lanes=2, prefill_tokens=4, max_stop_ids=2
)
STOP = 1


def make_request(seed: int, priority: int = 0, version: int | None = None) -> SampleRequest:
    rng = np.random.default_rng(seed)
    return SampleRequest(
        tokens=rng.integers(2, 50, rng.integers(1, 12)).astype(np.int32),
        max_tokens=int(rng.integers(1, 6)),
        stop_ids=(STOP, 0)[: rng.integers(0, 3)],
        key=(seed, 1),
        priority=priority,
        version=version,
    )


@dataclass
class FakeDevice:
    """Rows of text instead of a cache; samples by a counter, with a stop now and then.

    A logprob says which token it belongs to and which version sampled it.
    """

    text: list[list[int]] = field(default_factory=lambda: [[] for _ in range(CONFIG.rows)])
    position: list[int] = field(default_factory=lambda: [0] * CONFIG.rows)
    active: list[bool] = field(default_factory=lambda: [False] * CONFIG.rows)
    limit: list[int] = field(default_factory=lambda: [0] * CONFIG.rows)
    stop_ids: list[list[int]] = field(default_factory=lambda: [[] for _ in range(CONFIG.rows)])
    sampled: int = 0

    def prefill(self, chunk: PrefillChunk) -> None:
        used = chunk.rows[chunk.rows < CONFIG.rows]
        assert len(set(used.tolist())) == len(used), "one row in two lanes"
        for tokens, row, start in zip(chunk.tokens, chunk.rows, chunk.starts, strict=True):
            if row < CONFIG.rows:
                assert start % CONFIG.prefill_tokens == 0
                self.text[row][start:] = tokens.tolist()

    def update(self, update: RowUpdate) -> None:
        rows = update.rows
        for row in np.flatnonzero(update.changed).tolist():
            self.active[row] = bool(rows.active[row])
            self.position[row] = int(rows.position[row])
            self.limit[row] = int(rows.limit[row])
            self.stop_ids[row] = rows.stop_ids[row].tolist()
            if self.active[row]:
                self.text[row][self.position[row] :] = [int(rows.token[row])]

    def decode(self, version: int, served: Bools) -> SampledBlock:
        shape = (CONFIG.decode_tokens, CONFIG.rows)
        tokens, was_active = np.zeros(shape, np.int32), np.zeros(shape, np.bool_)
        for step, row in np.ndindex(shape):
            if not (self.active[row] and served[row]):
                continue
            self.sampled += 1
            token = STOP if self.sampled % 5 == 0 else 100 + self.sampled
            tokens[step, row], was_active[step, row] = token, True
            self.text[row].append(token)
            self.position[row] += 1
            full = self.position[row] + 1 >= self.limit[row]
            self.active[row] = not full and token not in self.stop_ids[row]
        logprobs = logprobs_of(tokens, version)
        return SampledBlock(tokens, logprobs, was_active, np.array(self.active), version)


def logprobs_of(tokens: Int32s, versions: Int32s | int) -> Float32s:
    return -(100 * tokens + versions).astype(np.float32)


@dataclass
class Run:
    """A scheduler, its device, and what became of each ticket."""

    scheduler: Scheduler = field(default_factory=lambda: Scheduler(CONFIG))
    device: FakeDevice = field(default_factory=FakeDevice)
    requests: dict[int, SampleRequest] = field(default_factory=dict)
    completed: dict[int, Completion] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    version: int = -1

    def __post_init__(self) -> None:
        self.publish()

    def publish(self) -> None:
        self.version += 1
        self.scheduler.publish(self.version)

    def submit(self, request: SampleRequest) -> None:
        ticket = len(self.requests)
        self.requests[ticket] = request
        self.scheduler.submit(ticket, request)

    def cancel(self, ticket: int) -> None:
        here = ticket in self.requests.keys() - self.completed.keys() - self.cancelled
        assert self.scheduler.cancel(ticket) == here
        if here:
            self.cancelled.add(ticket)

    def step(self) -> None:
        self.scheduler.assign()
        versions = self.scheduler.versions()
        assert versions == sorted(set(versions))
        for version in versions:
            chunk = self.scheduler.next_prefill(version)
            if chunk is not None:
                self.device.prefill(chunk)
            dispatch = self.scheduler.next_decode(version)
            if dispatch is not None:
                self.decode(version, dispatch)
        self.check()

    def decode(self, version: int, dispatch: DecodeDispatch) -> None:
        self.device.update(dispatch.update)
        served = np.flatnonzero(dispatch.served).tolist()
        assert all(self.device.active[row] for row in served)
        block = self.device.decode(version, dispatch.served)
        assert max(self.device.position[row] for row in served) <= dispatch.positions
        for ticket, completion in self.scheduler.record(block):
            assert ticket not in self.completed
            self.completed[ticket] = completion

    def check(self) -> None:
        here = len(self.requests) - len(self.completed) - len(self.cancelled)
        assert self.scheduler.waiting + self.scheduler.rows_busy == here
        assert self.scheduler.rows_busy <= CONFIG.rows
        assert self.scheduler.idle == (here == 0)

    def finish(self) -> None:
        for _ in range(20 * len(self.requests) + 20):
            self.step()
        assert self.scheduler.idle
        assert set(self.completed) | self.cancelled == set(self.requests)


def assert_fits(request: SampleRequest, completion: Completion) -> None:
    tokens = completion.tokens.tolist()
    room = min(request.max_tokens, CONFIG.context_tokens - len(request.tokens))
    assert 1 <= len(tokens) <= room
    assert len(completion.logprobs) == len(completion.policy_versions) == len(tokens)
    versions = completion.policy_versions
    np.testing.assert_array_equal(completion.logprobs, logprobs_of(completion.tokens, versions))
    assert not set(tokens[:-1]) & set(request.stop_ids)
    stopped = tokens[-1] in request.stop_ids
    assert completion.finish == (FinishReason.STOP if stopped else FinishReason.LENGTH)
    assert stopped or len(tokens) == room
    assert (np.diff(versions) >= 0).all()
    assert request.version is None or set(versions.tolist()) == {request.version}


Actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 10**6)),
        st.tuples(st.just("submit pinned"), st.integers(0, 10**6)),
        st.tuples(st.just("cancel"), st.integers(0, 12)),
        st.tuples(st.just("step"), st.just(0)),
        st.tuples(st.just("publish"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=100)
@given(Actions)
def test_every_request_leaves_once_and_every_row_is_given_back(
    actions: list[tuple[str, int]],
) -> None:
    run = Run()
    for kind, value in actions:
        if kind == "submit":
            run.submit(make_request(value, priority=value % 3))
        elif kind == "submit pinned":
            version = max(0, run.version - value % 4)
            run.submit(make_request(value, priority=value % 3, version=version))
        elif kind == "cancel":
            run.cancel(value)
        elif kind == "publish":
            run.publish()
        else:
            run.step()
    run.finish()
    assert run.scheduler.rows_busy == 0
    for ticket, completion in run.completed.items():
        assert_fits(run.requests[ticket], completion)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=12))
def test_the_whole_prompt_is_in_the_row_before_it_decodes(seeds: list[int]) -> None:
    run = Run()
    for seed in seeds:
        run.submit(make_request(seed))
    known = {tuple(request.tokens.tolist()) for request in run.requests.values()}
    while not run.scheduler.idle:
        run.step()
        for row in np.flatnonzero(run.device.active):
            text = run.device.text[row]
            assert any(tuple(text[: len(prompt)]) == prompt for prompt in known)
    prefilled = sum(len(request.tokens) - 1 for request in run.requests.values())
    assert run.scheduler.prefilled_tokens == prefilled


def test_smaller_priorities_get_rows_first_then_earlier_arrivals() -> None:
    scheduler = Scheduler(SamplerConfig(rows=1, prefill_lanes=1))
    for ticket, priority in enumerate([5, 2, 5, 1, 2, 1]):
        prompt = np.array([9], np.int32)
        scheduler.submit(ticket, SampleRequest(prompt, 1, (), (ticket, 0), priority=priority))
    scheduler.cancel(3)
    order = []
    while not scheduler.idle:
        scheduler.assign()
        dispatch = scheduler.next_decode(scheduler.newest)
        assert dispatch is not None
        ticket = int(dispatch.update.rows.key[0, 0])
        scheduler.cancel(ticket)
        order.append(ticket)
    assert order == [5, 1, 4, 0, 2]


def test_a_cancelled_row_falls_silent_even_if_it_is_given_away_at_once() -> None:
    run = Run()
    long = SampleRequest(np.array([7, 8], np.int32), 9, (), (1, 1))
    for _ in range(3):
        run.submit(long)
    while sum(run.device.active) < 3:
        run.step()
    for ticket in range(3):
        run.cancel(ticket)
    prompt = np.arange(20, 29, dtype=np.int32)
    run.submit(SampleRequest(prompt, 2, (), (2, 2)))
    run.finish()
    assert len(run.completed[3].tokens) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "sampler.rows must be >= 1, got 0"),
        ({"context_tokens": 1}, "context_tokens must be >= 2"),
        ({"rows": 4, "prefill_lanes": 5}, r"prefill_rows must be <= rows \(4\), got 5"),
    ],
)
def test_impossible_sizes_are_config_errors(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**changes)


@given(st.integers(2, 3000), st.integers(1, 300))
def test_windows_cover_the_context_in_powers_of_two(context: int, chunk: int) -> None:
    config = SamplerConfig(context_tokens=context, prefill_tokens=chunk)
    assert config.cache_tokens >= context
    assert config.cache_tokens % chunk == 0
    *shorter, last = config.windows
    assert last == config.cache_tokens
    assert shorter == [128 * 2**n for n in range(len(shorter))]
    needed = min(context, chunk)
    assert config.window_for(needed) >= needed
