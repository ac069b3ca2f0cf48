"""Plain decoding: full rows that start together, prompts of 64 tokens, 64 sampled tokens.

Two kinds of rounds alternate, of 64 sampled tokens and of 1. The first gives tokens per second
and per CPU-second, prefill and hand-over included. What it takes beyond the second is the cost
of 63 decode steps, which is compared with the bare matrix products of so many steps.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from costs import Cost, measure_async, quickest
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.types import SampleRequest
from roofline import cost_of_products
from serving import Build, host_microseconds, sample_all, serve
from workload import Plain, plain_prompt


@dataclass(frozen=True)
class PlainCosts:
    """One measurement; the best of its rounds, or of several measurements.

    Attributes:
      long: a round with all tokens.
      short: a round with one token, which is nearly all prefill.
      products: the bare matrix products of the steps between the two.
      host_microseconds: host time of a dispatch in a long round.
      compilations: while it was measured.
    """

    long: Cost
    short: Cost
    products: Cost
    host_microseconds: float
    compilations: int


def fit(sizes: SamplerConfig, work: Plain, rows: int) -> SamplerConfig:
    """Give the sampler exactly so many rows, and no position too many."""
    return replace(
        sizes,
        rows=rows,
        prefill_lanes=min(rows, sizes.prefill_lanes),
        context_tokens=work.prompt_tokens + work.new_tokens,
    )


async def measure_plain(build: Build, work: Plain, *, rounds: int) -> PlainCosts:
    """Measure the sampler after a warm-up round."""
    rows = build.config.rows
    long, short, host = [], [], []
    async with serve(build) as serving:

        async def one_round(index: int, new_tokens: int) -> Cost:
            asked = make_requests(work, rows, index, new_tokens)
            return await measure_async(partial(sample_all, serving.sampler, asked))

        await one_round(0, work.new_tokens)
        start = serving.read()
        for index in range(1, 2 * rounds, 2):
            short.append(await one_round(index, 1))
            before = serving.read()
            long.append(await one_round(index + 1, work.new_tokens))
            host.append(host_microseconds(before, serving.read()))
        compilations = serving.read().compilations - start.compilations
    steps = work.new_tokens - 1
    products = partial(cost_of_products, build.model, build.vocab_size, rows=rows, steps=steps)
    return PlainCosts(
        long=quickest(long),
        short=quickest(short),
        products=products(rounds=rounds),
        host_microseconds=min(host),
        compilations=compilations,
    )


def best(measured: list[PlainCosts]) -> PlainCosts:
    """Join measurements of the same case."""
    return PlainCosts(
        long=quickest(costs.long for costs in measured),
        short=quickest(costs.short for costs in measured),
        products=quickest(costs.products for costs in measured),
        host_microseconds=min(costs.host_microseconds for costs in measured),
        compilations=sum(costs.compilations for costs in measured),
    )


def report(build: Build, work: Plain, costs: PlainCosts) -> dict[str, Any]:
    """Turn costs into the numbers of the report."""
    tokens = build.config.rows * work.new_tokens
    steps = work.new_tokens - 1
    decode = Cost(costs.long.wall - costs.short.wall, costs.long.cpu - costs.short.cpu)
    return {
        "tokens_per_second": tokens / costs.long.wall,
        "tokens_per_cpu_second": tokens / costs.long.cpu,
        "roofline_share": costs.products.cpu / decode.cpu,
        "roofline_share_of_wall_time": costs.products.wall / decode.wall,
        "cpu_milliseconds_per_step": 1e3 * decode.cpu / steps,
        "products_cpu_milliseconds_per_step": 1e3 * costs.products.cpu / steps,
        "prefill_cpu_milliseconds": 1e3 * costs.short.cpu,
        "host_microseconds_per_dispatch": costs.host_microseconds,
        "compile_seconds": build.compiling.wall,
        "compilations": costs.compilations,
        "config": asdict(build.config),
    }


def make_requests(work: Plain, rows: int, index: int, new_tokens: int) -> list[SampleRequest]:
    """Make the requests of round `index`; no two rounds share a prompt."""
    return [
        SampleRequest(
            tokens=plain_prompt(index, row, work.prompt_tokens),
            max_tokens=new_tokens,
            stop_ids=(),
            key=(index, row),
        )
        for row in range(rows)
    ]
