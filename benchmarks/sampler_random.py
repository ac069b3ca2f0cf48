"""Random requests, to count what is compiled after the warm-up: nothing should be.

Lengths, budgets, stop ids, temperatures, cuts and penalties vary, some requests are cancelled,
and half-way new weights are published.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import trio

from costs import measure_async
from headrace.pipeline.sampler.config import DrawLimits, SamplerConfig
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.sampling import PLAIN, Sampling
from headrace.pipeline.types import SampleRequest
from serving import Build, serve
from workload import SEED, VOCAB_SIZE

ROWS = 16
CONTEXT_TOKENS = 300  # several attention windows
TASKS = 40  # more than rows, so that some requests wait
PLAIN_SHARE = 0.5  # of the requests without cuts, penalties and biases
MOST_BIASED = 2  # ids of a request
CANCELLED_SHARE = 0.05
CANCEL_AFTER_SECONDS = 0.02


def fit(sizes: SamplerConfig) -> SamplerConfig:
    """Give the sampler a few rows and room for long and short requests."""
    return replace(
        sizes,
        rows=ROWS,
        prefill_lanes=min(ROWS, sizes.prefill_lanes),
        context_tokens=CONTEXT_TOKENS,
        draws=DrawLimits(max_logit_bias=MOST_BIASED),
    )


async def measure_random(build: Build, count: int) -> dict[str, Any]:
    """Serve `count` random requests; returns the numbers of the report."""
    rng = np.random.default_rng(SEED)
    requests = [random_request(rng, build.config, index) for index in range(count)]
    async with serve(build) as serving:
        before = serving.read()
        sampler = serving.sampler

        async def work() -> None:
            await _work_off(sampler, iter(requests[: count // 2]), rng)
            await sampler.publish(build.params, 1)
            await _work_off(sampler, iter(requests[count // 2 :]), rng)

        cost = await measure_async(work)
        after = serving.read()
    return {
        "requests": count,
        "compilations": after.compilations - before.compilations,
        "cancelled": after.statistics.cancelled - before.statistics.cancelled,
        "generated_tokens": after.statistics.generated_tokens,
        "requests_per_cpu_second": count / cost.cpu,
    }


async def _work_off(
    sampler: NativeSampler, requests: Iterator[SampleRequest], rng: np.random.Generator
) -> None:
    async def work() -> None:
        for request in requests:
            cancelled = rng.random() < CANCELLED_SHARE
            with trio.move_on_after(CANCEL_AFTER_SECONDS if cancelled else np.inf):
                await sampler.sample(request)

    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(work)


def random_request(rng: np.random.Generator, config: SamplerConfig, index: int) -> SampleRequest:
    """Draw a request that leaves room for one token at least."""
    length = int(rng.integers(1, config.context_tokens))
    stop_ids = rng.integers(0, VOCAB_SIZE, rng.integers(0, config.max_stop_ids + 1))
    return SampleRequest(
        tokens=rng.integers(0, VOCAB_SIZE, length).astype(np.int32),
        max_tokens=int(rng.geometric(1 / 16)),
        stop_ids=tuple(stop_ids.tolist()),
        key=(SEED, index),
        temperature=float(rng.choice([0.0, 0.3, 1.0, 1.7])),
        priority=int(rng.integers(0, 3)),
        sampling=PLAIN if rng.random() < PLAIN_SHARE else _random_sampling(rng),
    )


def _random_sampling(rng: np.random.Generator) -> Sampling:
    biased = rng.choice(VOCAB_SIZE, rng.integers(0, MOST_BIASED + 1), replace=False)
    return Sampling(
        top_k=int(rng.choice([0, 1, 20])),
        top_p=float(rng.choice([1.0, 0.9])),
        min_p=float(rng.choice([0.0, 0.05])),
        repetition_penalty=float(rng.choice([1.0, 1.2])),
        presence_penalty=float(rng.choice([0.0, 0.5])),
        frequency_penalty=float(rng.choice([0.0, 0.5])),
        logit_bias=tuple((int(token), 2.0) for token in biased),
    )
