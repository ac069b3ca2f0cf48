"""What every sampler promises, as checks over the `Sampler` protocol alone.

A check gets a sampler to which nothing was published yet, and a function that publishes
weights of a version. Add a check here and every implementation is held to it.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import trio

from headrace.pipeline.types import (
    Completion,
    FinishReason,
    Sampler,
    SampleRequest,
    SamplerLoad,
)
from tests.sampler.helpers import CONFIG, VOCAB, assert_same, make_request, sample_all

Publish = Callable[[int], Awaitable[None]]
Check = Callable[[Sampler, Publish], Awaitable[None]]


def long_request(seed: int) -> SampleRequest:
    """A request that takes several dispatches: no stop id, the largest budget."""
    prompt = np.array([seed % VOCAB], np.int32)
    return SampleRequest(prompt, CONFIG.context_tokens - 1, (), (seed, 5))


async def requests_wait_for_the_first_publish(sampler: Sampler, publish: Publish) -> None:
    with trio.move_on_after(0.05) as scope:
        await sampler.sample(make_request(1))
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sampler.sample, make_request(2))
        await trio.sleep(0.01)
        await publish(0)


async def completions_are_whole(sampler: Sampler, publish: Publish) -> None:
    await publish(4)
    requests = [make_request(seed) for seed in range(30)]
    for request, completion in zip(
        requests, await sample_all(sampler.sample, requests), strict=True
    ):
        tokens = completion.tokens.tolist()
        assert completion.tokens.dtype == completion.policy_versions.dtype == np.int32
        assert completion.logprobs.dtype == np.float32
        assert len(tokens) == len(completion.logprobs) == len(completion.policy_versions)
        assert 1 <= len(tokens) <= request.max_tokens
        assert all(0 <= token < VOCAB for token in tokens)
        assert (completion.logprobs <= 0).all()
        assert set(completion.policy_versions.tolist()) == {4}
        assert not set(tokens[:-1]) & set(request.stop_ids)
        stopped = tokens[-1] in request.stop_ids
        assert completion.finish == (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert stopped or len(tokens) == request.max_tokens


async def neither_order_nor_company_matters(sampler: Sampler, publish: Publish) -> None:
    await publish(0)
    requests = [make_request(seed) for seed in range(12)]
    together = await sample_all(sampler.sample, requests)
    reversed_order = await sample_all(sampler.sample, requests[::-1])
    for request, left, right in zip(requests, together, reversed_order[::-1], strict=True):
        assert_same(left, right)
        assert_same(left, await sampler.sample(request))


async def a_prompt_that_does_not_fit_is_an_outcome(sampler: Sampler, publish: Publish) -> None:
    await publish(0)
    context = CONFIG.context_tokens
    prompts = [np.full(length, 2, np.int32) for length in (context - 1, context, context + 9)]
    requests = [SampleRequest(prompt, 5, (), (1, 1)) for prompt in prompts]
    fits, *others = await sample_all(sampler.sample, requests)
    assert fits.finish == FinishReason.LENGTH
    assert len(fits.tokens) == 1  # the budget ends with the context
    for completion in others:
        assert completion.finish == FinishReason.PROMPT_TOO_LONG
        assert len(completion.tokens) == len(completion.logprobs) == 0
        assert len(completion.policy_versions) == 0


async def a_malformed_request_harms_only_its_caller(sampler: Sampler, publish: Publish) -> None:
    await publish(0)
    prompt = np.array([1], np.int32)
    completions: list[Completion] = []

    async def good() -> None:
        completions.append(await sampler.sample(make_request(3)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(good)
        for bad in [
            SampleRequest(np.zeros(0, np.int32), 3, (), (1, 1)),
            SampleRequest(prompt, 0, (), (1, 1)),
        ]:
            with pytest.raises(ValueError, match="got"):
                await sampler.sample(bad)
    assert len(completions) == 1


async def cancelled_requests_leave_the_others_alone(sampler: Sampler, publish: Publish) -> None:
    await publish(0)
    request = make_request(7, max_tokens=6)
    alone = await sampler.sample(request)
    async with trio.open_nursery() as nursery:
        for seed in range(2 * CONFIG.rows):
            nursery.start_soon(sampler.sample, long_request(seed))
        await trio.sleep(0.002)
        nursery.cancel_scope.cancel()
    assert_same(alone, await sampler.sample(request))


async def a_publish_counts_when_it_returns(sampler: Sampler, publish: Publish) -> None:
    await publish(1)
    assert sampler.policy_version == 1
    async with trio.open_nursery() as nursery:
        for seed in range(CONFIG.rows + 2):
            nursery.start_soon(versions_never_fall, sampler, long_request(seed))
        for version in range(2, 6):
            await trio.sleep(0.003)
            await publish(version)
            assert sampler.policy_version == version
    fresh = await sampler.sample(make_request(9, max_tokens=5))
    assert set(fresh.policy_versions.tolist()) == {5}


async def versions_never_fall(sampler: Sampler, request: SampleRequest) -> None:
    versions = (await sampler.sample(request)).policy_versions
    assert (np.diff(versions) >= 0).all()
    assert 1 <= versions[0] <= versions[-1] <= 5


async def a_held_version_survives_publishes(sampler: Sampler, publish: Publish) -> None:
    requests = [make_request(seed) for seed in range(8)]
    await publish(1)
    with sampler.hold(1):
        before = await sample_all(sampler.sample, requests)
        for version in (2, 3):
            await publish(version)
        pinned = [replace(request, version=1) for request in requests]
        after = await sample_all(sampler.sample, pinned)
        newest = await sample_all(sampler.sample, requests)
    for left, right in zip(before, after, strict=True):
        assert_same(left, right)
    assert versions_of(before) == versions_of(after) == {1}
    assert versions_of(newest) == {3}


async def a_pinned_request_in_flight_keeps_its_version(sampler: Sampler, publish: Publish) -> None:
    """Also where the hold ends before the request does, and where there was none."""
    await publish(1)
    requests = [replace(long_request(seed), version=1) for seed in range(3 * CONFIG.rows)]
    alone = await sample_all(sampler.sample, requests)
    completions: dict[int, Completion] = {}

    async def sample(index: int) -> None:
        completions[index] = await sampler.sample(requests[index])

    async with trio.open_nursery() as nursery:
        for index in range(0, len(requests), 2):
            nursery.start_soon(sample, index)
        await trio.sleep(0.002)
        with sampler.hold(1):
            await publish(2)
            for index in range(1, len(requests), 2):
                nursery.start_soon(sample, index)
            await trio.sleep(0.002)
        await publish(3)
    assert versions_of(completions.values()) == {1}
    for index, completion in enumerate(alone):
        assert_same(completion, completions[index])


async def pinned_and_unpinned_go_side_by_side(sampler: Sampler, publish: Publish) -> None:
    seeds = range(6)
    newest_then: dict[int, list[Completion]] = {}
    with ExitStack() as holds:
        for version in (2, 3, 5):
            await publish(version)
            holds.enter_context(sampler.hold(version))
            newest_then[version] = await sample_all(
                sampler.sample, [make_request(seed) for seed in seeds]
            )
        mixed = [
            replace(make_request(seed), version=version)
            for seed in seeds
            for version in (5, None, 2, 3)
        ]
        completions = await sample_all(sampler.sample, mixed)
    for index, (request, completion) in enumerate(zip(mixed, completions, strict=True)):
        version = 5 if request.version is None else request.version
        assert versions_of([completion]) == {version}
        assert_same(completion, newest_then[version][index // 4])


async def an_unknown_version_is_refused(sampler: Sampler, publish: Publish) -> None:
    for version in (-1, 0):
        await refuses(sampler, version)
    await publish(1)
    await publish(3)
    for version in (-1, 0, 1, 2, 4):
        await refuses(sampler, version)
    completion = await sampler.sample(replace(make_request(1), version=3))
    assert versions_of([completion]) == {3}


async def a_version_is_refused_after_its_last_hold(sampler: Sampler, publish: Publish) -> None:
    pinned = replace(make_request(1), version=1)
    await publish(1)
    with sampler.hold(1):
        await publish(2)
        with sampler.hold(1):
            await publish(3)
        assert versions_of([await sampler.sample(pinned)]) == {1}
    await refuses(sampler, 1)
    with sampler.hold(3):
        await refuses(sampler, 1)
    assert versions_of([await sampler.sample(make_request(1))]) == {3}


async def the_load_counts_every_request(sampler: Sampler, publish: Publish) -> None:
    count = CONFIG.rows + 3
    assert sampler.load() == SamplerLoad(CONFIG.rows, rows_busy=0, waiting=0)
    async with trio.open_nursery() as nursery:
        for seed in range(count):
            nursery.start_soon(sampler.sample, long_request(seed))
        await trio.sleep(0.002)
        assert sampler.load() == SamplerLoad(CONFIG.rows, rows_busy=0, waiting=count)
        await publish(0)
        for _ in range(5):
            await trio.sleep(0.001)
            load = sampler.load()
            assert load.rows_busy <= CONFIG.rows
            assert load.rows_busy + load.waiting <= count
    load = sampler.load()
    assert (load.rows, load.rows_busy, load.waiting) == (CONFIG.rows, 0, 0)


async def the_load_says_how_full_the_cache_is(sampler: Sampler, publish: Publish) -> None:
    """More long requests than fit, in two waves, some of which are cancelled."""
    assert (sampler.load().pages_free, sampler.load().preemptions) == (1, 0)
    await publish(0)
    preemptions = 0
    for give_up in (True, False):
        async with trio.open_nursery() as nursery:
            for seed in range(2 * CONFIG.rows):
                nursery.start_soon(sampler.sample, long_request(seed))
            for _ in range(5):
                await trio.sleep(0.001)
                load = sampler.load()
                assert 0 <= load.pages_free <= 1
                assert load.preemptions >= preemptions
                preemptions = load.preemptions
            if give_up:
                nursery.cancel_scope.cancel()
    # What a cancelled request had is free when the next one is served, at the latest.
    await sampler.sample(make_request(1))
    assert sampler.load().pages_free == 1
    assert sampler.load().preemptions >= preemptions


async def a_turn_goes_on_as_its_whole_text_would(sampler: Sampler, publish: Publish) -> None:
    """Whatever is cached of the turn before; asked a second time, less of it is."""
    await publish(0)
    requests = [make_request(seed, max_tokens=4) for seed in range(8)]
    for seen in (2, 1):
        completions = await sample_all(sampler.sample, requests)
        requests = [
            replace(request, tokens=np.concatenate([request.tokens, done.tokens, more]))
            for request, done, more in zip(
                requests, completions, np.ones((len(requests), seen), np.int32), strict=True
            )
        ]
    cached = await sample_all(sampler.sample, requests)
    afresh = await sample_all(sampler.sample, requests)
    for left, right in zip(cached, afresh, strict=True):
        assert left.tokens.tolist() == right.tokens.tolist()
        np.testing.assert_allclose(left.logprobs, right.logprobs, atol=1e-4)


async def refuses(sampler: Sampler, version: int) -> None:
    with pytest.raises(ValueError, match=f"got {version}"):
        await sampler.sample(replace(make_request(1), version=version))
    with pytest.raises(ValueError, match=f"got {version}"), sampler.hold(version):
        pass


def versions_of(completions: Iterable[Completion]) -> set[int]:
    return {version for done in completions for version in done.policy_versions.tolist()}


CHECKS: tuple[Check, ...] = (
    requests_wait_for_the_first_publish,
    completions_are_whole,
    neither_order_nor_company_matters,
    a_prompt_that_does_not_fit_is_an_outcome,
    a_malformed_request_harms_only_its_caller,
    cancelled_requests_leave_the_others_alone,
    a_publish_counts_when_it_returns,
    a_held_version_survives_publishes,
    a_pinned_request_in_flight_keeps_its_version,
    pinned_and_unpinned_go_side_by_side,
    an_unknown_version_is_refused,
    a_version_is_refused_after_its_last_hold,
    the_load_counts_every_request,
    the_load_says_how_full_the_cache_is,
    a_turn_goes_on_as_its_whole_text_would,
)
