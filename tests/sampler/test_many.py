"""Several completions of one prompt."""

from dataclasses import replace

import pytest

from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.sampler.many import sample_many
from headrace.pipeline.sampler.programs import compile_programs
from headrace.pipeline.sampler.service import NativeSampler
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    assert_same,
    make_request,
    run_native,
    sample_all,
    sampler_params,
    until_idle,
)


def test_completions_differ_and_more_of_them_change_none_and_the_prompt_is_prefilled_once() -> (
    None
):
    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        request = make_request(4, max_tokens=8)
        three = await sample_many(sampler.sample, request, 3)
        assert (await until_idle(sampler)).prefill_tokens == len(request.tokens) - 1
        five = await sample_many(sampler.sample, request, 5)
        for left, right in zip(three, five, strict=False):
            assert_same(left, right)
        assert len({tuple(done.tokens.tolist()) for done in five}) > 1
        with pytest.raises(ValueError, match="n must be >= 1, got 0"):
            await sample_many(sampler.sample, request, 0)
        with pytest.raises(ValueError, match="max_tokens must be >= 1"):
            await sample_many(sampler.sample, make_request(1, max_tokens=0), 2)

    run_native(body)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [7, 8, 24])
def test_a_request_has_the_same_bits_in_every_row(rows: int) -> None:  # law 7
    config = replace(CONFIG, rows=rows)

    async def body(sampler: NativeSampler) -> None:
        await sampler.publish(sampler_params(0), 0)
        for seed in range(12):
            request = make_request(seed, max_tokens=8)
            first, *others = await sample_all(sampler.sample, [request] * rows)
            for other in others:
                assert_same(first, other)

    run_native(body, compile_programs(config, decoder_model(MODEL, VOCAB)), config)
