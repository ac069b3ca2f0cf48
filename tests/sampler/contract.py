"""What every sampler promises, as checks over the `Sampler` protocol alone.

A check gets a sampler to which nothing was published yet, and a function that publishes
weights of a version. Add a check here and every implementation is held to it.
"""

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import trio

from headrace.pipeline.types import (
    Completion,
    FinishReason,
    Sampler,
    SampleRequest,
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


CHECKS: tuple[Check, ...] = (
    requests_wait_for_the_first_publish,
    completions_are_whole,
    neither_order_nor_company_matters,
    a_prompt_that_does_not_fit_is_an_outcome,
    a_malformed_request_harms_only_its_caller,
    cancelled_requests_leave_the_others_alone,
    a_publish_counts_when_it_returns,
)
