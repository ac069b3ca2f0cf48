"""What a decode dispatch costs the host while all rows decode and no request begins or ends.

The engine is stepped without trio: each step plans a dispatch, sets its pages aside, and takes
in the results of the one before. In the *worst* case each row needs a new page for every
dispatch, which is taken from a trajectory of an earlier round: that is the most which a step
does with pages. In the *usual* one a row needs a page every fourth dispatch, and pages are free.
"""

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.observe.compilations import CompilationCounter
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.engine import Engine
from headrace.pipeline.types import SampleRequest
from host_time import HostClock, reading_clocked, wrap_programs
from serving import Build
from workload import plain_prompt

PROMPT_TOKENS = 32
DISPATCHES = 24  # measured ones, of each round
ROUNDS = 4  # in the worst case the first ones fill the cache; the usual one is the first


def fit(sizes: SamplerConfig, rows: int, *, pages_per_dispatch: float = 1) -> SamplerConfig:
    """Let a row need so many pages a dispatch, with room for all dispatches of a round."""
    dispatches = DISPATCHES + 2 * rows // sizes.prefill_lanes + 4
    decode_tokens = int(pages_per_dispatch * sizes.page_tokens)
    pages = -(-dispatches * decode_tokens // sizes.page_tokens)
    return replace(
        sizes,
        rows=rows,
        decode_tokens=decode_tokens,
        context_tokens=PROMPT_TOKENS + pages * sizes.page_tokens,
    )


def measure_host(build: Build, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure the last round; returns the numbers of the report."""
    clock = HostClock()
    model = decoder_model(build.model, build.vocab_size)
    engine = Engine(build.config, model, programs=wrap_programs(build.programs, clock))
    with reading_clocked(clock), CompilationCounter() as compilations:
        engine.publish(build.params, 0)
        for index in range(rounds):
            between, within = zip(*_run_round(engine, clock, build.config, index), strict=True)
    return {
        "rows": build.config.rows,
        "host_microseconds_per_dispatch": 1e6 * float(np.median(between)),
        "call_microseconds_per_dispatch": 1e6 * float(np.median(within)),
        "compilations": compilations.total,
        "config": asdict(build.config),
    }


def _run_round(
    engine: Engine, clock: HostClock, config: SamplerConfig, index: int
) -> list[tuple[float, float]]:
    """Serve full rows to their end; returns the seconds of steps in the middle: see `_step`."""
    for row in range(config.rows):
        tokens = plain_prompt(index, row, PROMPT_TOKENS)
        request = SampleRequest(tokens, config.context_tokens, (), (index, row))
        engine.submit(index * config.rows + row, request)
    while engine.statistics().rows_busy < config.rows or _prefills(engine, config, index):
        engine.step()
    seconds = [_step(engine, clock) for _ in range(DISPATCHES)]
    while engine.has_work:
        engine.step()
    return seconds


def _prefills(engine: Engine, config: SamplerConfig, index: int) -> bool:
    """Whether some prompt of the round isn't in the cache yet."""
    prompts = (index + 1) * config.rows * (PROMPT_TOKENS - 1)
    return engine.statistics().prefill_tokens < prompts


def _step(engine: Engine, clock: HostClock) -> tuple[float, float]:
    """Step; returns what that took between and within JAX calls."""
    before = clock.seconds, clock.call_seconds
    engine.step()
    return clock.seconds - before[0], clock.call_seconds - before[1]
