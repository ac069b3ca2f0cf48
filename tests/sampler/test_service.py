"""The laws of the native sampler: rows, cancellation, logprobs, versions, compilations."""

import threading
import weakref
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.sampling import Sampling
from headrace.pipeline.types import Completion, Int32s, SampleRequest, SamplerLoad
from tests.sampler.contract import long_request
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    assert_same,
    make_request,
    native_programs,
    run_native,
    sample_all,
    sampler_params,
    until_idle,
)

TEMPERATURES = (1.0, 0.6, 1.7, 0.0)
REQUESTS = tuple(make_request(seed, temperature=TEMPERATURES[seed % 4]) for seed in range(14))


@cache
def completions_alone(version: int = 0) -> tuple[Completion, ...]:
    """Each request without any neighbour, when this version is the only one."""
    completions: list[Completion] = []

    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(version), version)
        completions.extend([await sampler.sample(request) for request in REQUESTS])

    run_native(body)
    return tuple(completions)


async def give_up(sampler: NativeSampler, request: SampleRequest, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await sampler.sample(request)


@settings(max_examples=12)
@given(
    st.permutations(range(len(REQUESTS))),
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 0.03)), max_size=12),
)
def test_law_7_rows_neighbours_and_timing_never_change_a_request(
    order: list[int], cancelled: list[tuple[int, float]]
) -> None:
    got: list[Completion] = []

    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        async with trio.open_nursery() as nursery:
            for seed, seconds in cancelled:
                nursery.start_soon(give_up, sampler, make_request(seed), seconds)
            got.extend(await sample_all(sampler.sample, [REQUESTS[index] for index in order]))

    run_native(body)
    for index, completion in zip(order, got, strict=True):
        assert_same(completion, completions_alone()[index])


VERSIONS = 4
Steps = st.lists(
    st.one_of(
        st.tuples(st.just("pinned"), st.integers(0, len(REQUESTS) - 1)),
        st.tuples(st.just("newest"), st.integers(0, len(REQUESTS) - 1)),
        st.tuples(st.just("cancelled"), st.integers(0, 10**6)),
        st.tuples(st.just("publish"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 5)),
    ),
    min_size=8,
    max_size=40,
)


@settings(max_examples=15)
@given(Steps)
def test_law_7_a_pinned_request_is_as_alone_whatever_else_is_sampled_or_published(
    steps: list[tuple[str, int]],
) -> None:
    pinned: list[tuple[int, int, Completion]] = []
    unpinned: list[Completion] = []

    async def body(sampler: NativeSampler) -> None:
        async def sample_pinned(index: int, version: int) -> None:
            request = replace(REQUESTS[index], version=version)
            pinned.append((index, version, await sampler.sample(request)))

        async def sample_newest(index: int) -> None:
            unpinned.append(await sampler.sample(REQUESTS[index]))

        async def go(kind: str, value: int, nursery: trio.Nursery) -> None:
            newest = sampler.policy_version
            if kind == "pinned":
                nursery.start_soon(sample_pinned, value, max(0, newest - value % 2))
            elif kind == "newest":
                nursery.start_soon(sample_newest, value)
            elif kind == "cancelled":
                request = replace(make_request(value), version=newest)
                nursery.start_soon(give_up, sampler, request, value / 10**8)
            elif kind == "publish" and newest + 1 < VERSIONS:
                await sampler.publish(sampler_params(newest + 1), newest + 1)
                holds.enter_context(sampler.hold(newest + 1))
            await trio.sleep(value / 1000 if kind == "wait" else 0)

        with ExitStack() as holds:
            async with trio.open_nursery() as nursery:
                await go("publish", 0, nursery)
                for kind, value in steps:
                    await go(kind, value, nursery)
        statistics = await until_idle(sampler)
        assert statistics.live_versions == 1

    run_native(body)
    for index, version, completion in pinned:
        assert set(completion.policy_versions.tolist()) == {version}
        assert_same(completion, completions_alone(version)[index])
    for completion in unpinned:
        assert (np.diff(completion.policy_versions) >= 0).all()


@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 0.02)), min_size=1, max_size=20),
    st.booleans(),
)
def test_law_16_cancel_anywhere_frees_every_row(
    requests: list[tuple[int, float]], published: bool
) -> None:
    async def body(sampler: NativeSampler) -> None:
        if published:
            await sampler.publish(sampler_params(0), 0)
        async with trio.open_nursery() as nursery:
            for seed, seconds in requests:
                nursery.start_soon(give_up, sampler, long_request(seed), seconds)
        statistics = await sampler.device.run(sampler.statistics)
        assert statistics.rows_busy == statistics.waiting == 0
        assert published or statistics.cancelled == len(requests)

    run_native(body)


@settings(max_examples=10)
@given(st.lists(st.floats(0, 0.02), min_size=1, max_size=12))
def test_law_16_cancelling_pinned_requests_frees_rows_and_weights(seconds: list[float]) -> None:
    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        async with trio.open_nursery() as nursery:
            for seed, limit in enumerate(seconds):
                request = replace(long_request(seed), version=0)
                nursery.start_soon(give_up, sampler, request, limit)
            await trio.sleep(0.001)
            await sampler.publish(sampler_params(1), 1)
        statistics = await sampler.device.run(sampler.statistics)
        assert statistics.rows_busy == statistics.waiting == 0
        assert statistics.live_versions == 1

    run_native(body)


def test_weights_are_released_with_the_last_hold_and_the_last_request() -> None:
    alive: list[weakref.ref[jax.Array]] = []

    async def publish(sampler: NativeSampler, version: int) -> None:
        weights = jax.tree.map(jnp.copy, sampler_params(version))
        alive.append(weakref.ref(weights["embedding"]))
        await sampler.publish(weights, version)

    async def in_memory(sampler: NativeSampler) -> list[int]:
        await sampler.device.run(int)
        return [version for version, weights in enumerate(alive) if weights() is not None]

    async def body(sampler: NativeSampler) -> None:
        await publish(sampler, 0)
        with sampler.hold(0):
            await publish(sampler, 1)
            with sampler.hold(0), sampler.hold(1):
                await publish(sampler, 2)
                assert await in_memory(sampler) == [0, 1, 2]
            assert await in_memory(sampler) == [0, 2]
            async with trio.open_nursery() as nursery:
                for seed in range(4 * CONFIG.rows):
                    nursery.start_soon(sampler.sample, replace(long_request(seed), version=2))
                await trio.sleep(0)
                await publish(sampler, 3)
            assert await in_memory(sampler) == [0, 3]
        assert await in_memory(sampler) == [3]

    run_native(body)


def test_a_version_is_published_once() -> None:
    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(2), 2)
        for version in (-1, 1, 2):
            with pytest.raises(ValueError, match=f"must be > 2, the newest, got {version}"):
                await sampler.publish(sampler_params(0), version)
        assert sampler.policy_version == 2

    run_native(body)


def test_a_request_that_the_device_thread_has_not_seen_counts_as_waiting() -> None:
    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        go_on = threading.Event()
        sampler.device.post(lambda: go_on.wait() and None)
        async with trio.open_nursery() as nursery:
            for seed in range(3):
                nursery.start_soon(sampler.sample, make_request(seed))
            await trio.testing.wait_all_tasks_blocked()
            assert sampler.load() == SamplerLoad(CONFIG.rows, rows_busy=0, waiting=3)
            go_on.set()

    run_native(body)


def test_a_row_in_flight_changes_its_version_between_two_dispatches() -> None:
    engine = NativeSampler(CONFIG, decoder_model(MODEL, VOCAB), programs=native_programs())._engine
    engine.publish(sampler_params(0), 0)
    engine.submit(0, long_request(1))
    assert engine.step() == engine.step() == []
    engine.publish(sampler_params(1), 5)
    finished: list[Any] = []
    while engine.has_work:
        finished += engine.step()
    [(_, completion)] = finished
    expected = [0] * 2 * CONFIG.decode_tokens
    expected += [5] * (CONFIG.context_tokens - 1 - len(expected))
    assert completion.policy_versions.tolist() == expected


def test_a_pinned_row_in_flight_stays_with_its_version_and_shares_a_dispatch_while_newest() -> (
    None
):
    engine = NativeSampler(CONFIG, decoder_model(MODEL, VOCAB), programs=native_programs())._engine
    engine.publish(sampler_params(0), 0)
    requests = [replace(long_request(1), version=0), long_request(2)]
    for ticket, request in enumerate(requests):
        engine.submit(ticket, request)
    assert engine.step() == engine.step() == []
    assert engine.statistics().dispatches == 2
    engine.publish(sampler_params(1), 1)
    finished = dict(engine.step())
    assert engine.statistics().dispatches == 4
    while engine.has_work:
        finished |= dict(engine.step())
    engine.drop(0)
    total = CONFIG.context_tokens - 1
    assert finished[0].policy_versions.tolist() == [0] * total
    before = 2 * CONFIG.decode_tokens
    assert finished[1].policy_versions.tolist() == [0] * before + [1] * (total - before)


def test_statistics_count_what_was_done() -> None:
    async def body(sampler: NativeSampler) -> None:
        assert (await until_idle(sampler)).generated_tokens == 0
        await sampler.publish(sampler_params(0), 0)
        completions = await sample_all(sampler.sample, REQUESTS)
        statistics = await until_idle(sampler)
        assert statistics.generated_tokens == sum(len(done.tokens) for done in completions)
        assert statistics.prefill_tokens == sum(len(done.tokens) - 1 for done in REQUESTS)
        assert statistics.dispatches > 0
        assert statistics.busy_seconds > 0
        assert statistics.cancelled == 0

    run_native(body)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array([1, -1], np.int32)}, f"ids in 0..{VOCAB - 1}"),
        ({"tokens": np.array([1, VOCAB], np.int32)}, f"ids in 0..{VOCAB - 1}"),
        ({"tokens": np.array([1, 2])}, r"must be int32\[n\], got int64\[2\]"),
        ({"tokens": np.zeros((1, 2), np.int32)}, r"must be int32\[n\], got int32\[1, 2\]"),
        ({"key": (1, -1)}, r"two numbers in 0\.\.2\*\*32 - 1"),
        ({"key": (1, 2, 3)}, r"two numbers in 0\.\.2\*\*32 - 1"),
        ({"priority": None}, "must be integers, got"),
        ({"max_tokens": 1.5}, "must be integers, got"),
        ({"stop_ids": (2**31,)}, f"stop_ids must be ids in 0..{VOCAB - 1}"),
        ({"stop_ids": (1, 2, 3)}, "may have 2 stop ids, got 3"),
        ({"temperature": float("nan")}, "temperature must be >= 0 and finite, got nan"),
        ({"temperature": -1.0}, "temperature must be >= 0 and finite, got -1"),
        ({"sampling": Sampling(stop_strings=("a",))}, "give it decode_text"),
        ({"sampling": Sampling(top_logprobs=4)}, "must be <= 3, got 4"),
        ({"sampling": Sampling(allowed_tokens=(VOCAB,))}, f"must be < {VOCAB}, got {VOCAB}"),
    ],
)
def test_a_request_that_asks_for_too_much_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    async def body(sampler: NativeSampler) -> None:
        with pytest.raises((ValueError, ConfigError), match=message):
            await sampler.sample(replace(make_request(1), **changes))

    run_native(body)


def test_an_error_of_a_constraint_reaches_its_caller_and_nobody_else() -> None:
    def fails(sampled: Int32s) -> list[int]:
        raise ZeroDivisionError(len(sampled))

    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        bad = replace(make_request(1), sampling=Sampling(constraint=fails))
        completions: list[Completion] = []

        async def good() -> None:
            completions.extend(await sample_all(sampler.sample, REQUESTS))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(good)
            with pytest.raises(ZeroDivisionError):
                await sampler.sample(bad)
        with pytest.raises(ZeroDivisionError):  # also if nobody else is there
            await sampler.sample(bad)
        for left, right in zip(completions, completions_alone(), strict=True):
            assert_same(left, right)

    run_native(body)


def test_no_task_waits_for_a_sampler_that_has_ended() -> None:
    told: list[str] = []

    async def wait_for(sampler: NativeSampler, name: str) -> None:
        with pytest.raises(trio.ClosedResourceError, match="the sampler has ended"):
            await sampler.sample(make_request(1))
        told.append(name)

    async def main() -> None:
        sampler = NativeSampler(CONFIG, decoder_model(MODEL, VOCAB), programs=native_programs())
        async with trio.open_nursery() as waiters, trio.open_nursery() as stages:
            await stages.start(sampler.serve)
            waiters.start_soon(wait_for, sampler, "waiting")
            await trio.sleep(0.01)
            stages.cancel_scope.cancel()
        await wait_for(sampler, "late")

    trio.run(main)
    assert told == ["waiting", "late"]


def test_an_error_of_the_engine_surfaces_in_serve_alone() -> None:
    def broken(*operands: Any) -> Any:
        raise RuntimeError("the device is gone")

    programs = native_programs()

    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        await sampler.sample(make_request(1))

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="gone"), flatten_subgroups=True):
        run_native(body, replace(programs, decode=dict.fromkeys(programs.decode, broken)))


def test_weights_of_another_model_are_refused_and_the_sampler_goes_on() -> None:
    right = sampler_params(0)
    first, *others = right["layers"]
    wide = {**first, "query": np.zeros((16, 4, 5), np.float32)}
    wrong: dict[str, Any] = {
        r"float32\[4, 4, 16\] at 'layers.0.query', got float32\[16, 4, 5\]": {
            **right,
            "layers": [wide, *others],
        },
        r"float32\[19, 16\] at 'embedding', got bfloat16\[19, 16\]": {
            **right,
            "embedding": right["embedding"].astype(jnp.bfloat16),
        },
        "float32.* at 'embedding', got nothing": {**right, "embedding": None},
        "nothing at 'head', got a float": {**right, "head": 1.0},
        "must be a tree": {**right, "layers": tuple(right["layers"])},
        "float32.* at 'layers.1.*, got nothing": {**right, "layers": [first]},
    }

    async def body(sampler: NativeSampler) -> None:
        for version, publishes_before in ((0, False), (1, True)):
            for message, params in wrong.items():
                with pytest.raises(ValueError, match=message):
                    await sampler.publish(params, version)
            assert sampler.policy_version == (0 if publishes_before else -1)
            await sampler.publish(right, version)
            assert len((await sampler.sample(make_request(1))).tokens)

    run_native(body)


LONG_MODEL = ModelConfig(1, 12, 3, 3, 4, 16, tied_embeddings=False)
LONG_CONFIG = SamplerConfig(
    rows=3, context_tokens=250, decode_tokens=8, prefill_lanes=3, prefill_tokens=32
)


@pytest.mark.slow
def test_law_7_a_longer_neighbour_chooses_the_window_but_changes_no_bit() -> None:
    """Neither if it has another version and is cut off by the window of a dispatch."""
    assert LONG_CONFIG.windows == (128, 256)
    make = jax.jit(lambda key: unstack(init(LONG_MODEL, VOCAB, key)))
    params = [make(jax.random.key(version)) for version in range(2)]
    rng = np.random.default_rng(0)

    def request(seed: int, length: int, budget: int) -> SampleRequest:
        prompt = rng.integers(0, VOCAB, length).astype(np.int32)
        return SampleRequest(prompt, budget, (), (seed, 1))

    short = [request(1, 5, 40), request(2, 70, 40)]
    completions: list[list[Completion]] = []
    long_alone: list[Completion] = []

    async def main() -> None:
        sampler = NativeSampler(LONG_CONFIG, decoder_model(LONG_MODEL, VOCAB))
        async with trio.open_nursery() as nursery:
            await nursery.start(sampler.serve)
            await sampler.publish(params[0], 0)
            completions.append(await sample_all(sampler.sample, short))
            for length in (120, 200):
                requests = [*short, request(length, length, 45)]
                completions.append(await sample_all(sampler.sample, requests))
            with sampler.hold(0):
                await sampler.publish(params[1], 1)
                long_alone.append(await sampler.sample(requests[-1]))
                requests = [*(replace(one, version=0) for one in short), requests[-1]]
                completions.append(await sample_all(sampler.sample, requests))
            nursery.cancel_scope.cancel()

    trio.run(main)
    for other in completions[1:]:
        for left, right in zip(completions[0], other, strict=False):
            assert_same(left, right)
    assert_same(completions[-1][-1], long_alone[0])
