"""The laws of the native sampler: rows, cancellation, logprobs, versions, compilations."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.observe.compilations import CompilationCounter
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.types import Completion, SampleRequest
from tests.sampler.contract import long_request
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    assert_same,
    learner_logprobs,
    learner_params,
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
def completions_alone() -> tuple[Completion, ...]:
    """Each request without any neighbour."""
    completions: list[Completion] = []

    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        completions.extend([await sampler.sample(request) for request in REQUESTS])

    run_native(body)
    return tuple(completions)


async def give_up(sampler: NativeSampler, request: SampleRequest, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await sampler.sample(request)


@settings(max_examples=25)
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


@settings(max_examples=25)
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


def test_law_8_logprobs_are_those_of_the_learner() -> None:
    for request, completion in zip(REQUESTS, completions_alone(), strict=True):
        expected = learner_logprobs(learner_params(0), request, completion)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


def test_law_9_a_fresh_request_after_a_publish_has_the_logprobs_of_the_new_weights() -> None:
    async def body(sampler: NativeSampler) -> None:
        for version in range(3):
            await sampler.publish(sampler_params(version), version)
            for request, completion in zip(
                REQUESTS, await sample_all(sampler.sample, REQUESTS), strict=True
            ):
                expected = learner_logprobs(learner_params(version), request, completion)
                np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
                assert set(completion.policy_versions.tolist()) == {version}

    run_native(body)


def test_a_row_in_flight_changes_its_version_between_two_dispatches() -> None:
    engine = NativeSampler(CONFIG, MODEL, VOCAB, programs=native_programs())._engine
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


def test_nothing_compiles_after_warm_up() -> None:
    requests = [
        make_request(seed, temperature=TEMPERATURES[seed % 4], priority=seed % 5)
        for seed in range(200)
    ]

    async def body(sampler: NativeSampler) -> None:
        params = [sampler_params(0), sampler_params(1)]
        native_programs()
        with CompilationCounter() as compilations:
            await sampler.publish(params[0], 0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(give_up, sampler, long_request(1), 0.01)
                await sample_all(sampler.sample, requests[:100])
                await sampler.publish(params[1], 1)
                await sample_all(sampler.sample, requests[100:])
        assert compilations.total == 0

    run_native(body)


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


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    async def body(sampler: NativeSampler) -> None:
        for token in (-1, VOCAB):
            request = SampleRequest(np.array([1, token], np.int32), 3, (), (1, 1))
            with pytest.raises(ValueError, match=f"ids in 0..{VOCAB - 1}"):
                await sampler.sample(request)
        too_many = SampleRequest(np.array([1], np.int32), 3, (1, 2, 3), (1, 1))
        with pytest.raises(ValueError, match="may have 2 stop ids, got 3"):
            await sampler.sample(too_many)

    run_native(body)


def test_no_task_waits_for_a_sampler_that_has_ended() -> None:
    told: list[str] = []

    async def wait_for(sampler: NativeSampler, name: str) -> None:
        with pytest.raises(trio.ClosedResourceError, match="the sampler has ended"):
            await sampler.sample(make_request(1))
        told.append(name)

    async def main() -> None:
        sampler = NativeSampler(CONFIG, MODEL, VOCAB, programs=native_programs())
        async with trio.open_nursery() as waiters, trio.open_nursery() as stages:
            await stages.start(sampler.serve)
            waiters.start_soon(wait_for, sampler, "waiting")
            await trio.sleep(0.01)
            stages.cancel_scope.cancel()
        await wait_for(sampler, "late")

    trio.run(main)
    assert told == ["waiting", "late"]


def test_an_error_of_the_engine_surfaces_in_serve_alone() -> None:
    async def body(sampler: NativeSampler) -> None:
        await sampler.publish({"embedding": None}, 0)
        await sampler.sample(make_request(1))

    with pytest.RaisesGroup(pytest.RaisesExc(TypeError), flatten_subgroups=True):
        run_native(body)


LONG_MODEL = ModelConfig(1, 12, 3, 3, 4, 16, tied_embeddings=False)
LONG_CONFIG = SamplerConfig(
    rows=3, context_tokens=300, decode_tokens=8, prefill_rows=3, prefill_tokens=32
)


def test_law_7_a_longer_neighbour_chooses_the_window_but_changes_no_bit() -> None:
    assert LONG_CONFIG.windows == (128, 256, 384)
    params = jax.jit(partial(init, LONG_MODEL, VOCAB))(jax.random.key(0))
    rng = np.random.default_rng(0)

    def request(seed: int, length: int, budget: int) -> SampleRequest:
        prompt = rng.integers(0, VOCAB, length).astype(np.int32)
        return SampleRequest(prompt, budget, (), (seed, 1))

    short = [request(1, 5, 40), request(2, 70, 40)]
    completions: list[list[Completion]] = []

    async def main() -> None:
        sampler = NativeSampler(LONG_CONFIG, LONG_MODEL, VOCAB)
        async with trio.open_nursery() as nursery:
            await nursery.start(sampler.serve)
            await sampler.publish(jax.jit(unstack)(params), 0)
            completions.append(await sample_all(sampler.sample, short))
            for length in (150, 250):
                requests = [*short, request(length, length, 45)]
                completions.append(await sample_all(sampler.sample, requests))
            nursery.cancel_scope.cancel()

    trio.run(main)
    for other in completions[1:]:
        for left, right in zip(completions[0], other, strict=False):
            assert_same(left, right)
