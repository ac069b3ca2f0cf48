"""What a decode dispatch costs the host while all rows decode and no request begins or ends.

The engine is stepped without trio: each step plans a dispatch, sets its pages aside, and takes
in the results of the one before. Each row needs a new page for every dispatch, which is taken
from a trajectory of an earlier round: that is the most which a step does with pages.
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
ROUNDS = 4  # the first ones fill the cache


def fit(sizes: SamplerConfig, rows: int) -> SamplerConfig:
    """Give the rows a page a dispatch and room for all dispatches of a round."""
    dispatches = DISPATCHES + 2 * rows // sizes.prefill_lanes + 4
    return replace(
        sizes,
        rows=rows,
        decode_tokens=sizes.page_tokens,
        context_tokens=PROMPT_TOKENS + dispatches * sizes.page_tokens,
    )


def measure_host(build: Build) -> dict[str, Any]:
    """Measure the last round; returns the numbers of the report."""
    clock = HostClock()
    model = decoder_model(build.model, build.vocab_size)
    engine = Engine(build.config, model, programs=wrap_programs(build.programs, clock))
    with reading_clocked(clock), CompilationCounter() as compilations:
        engine.publish(build.params, 0)
        for index in range(ROUNDS):
            seconds = _run_round(engine, clock, build.config, index)
    return {
        "rows": build.config.rows,
        "host_microseconds_per_dispatch": 1e6 * float(np.median(seconds)),
        "compilations": compilations.total,
        "config": asdict(build.config),
    }


def _run_round(engine: Engine, clock: HostClock, config: SamplerConfig, index: int) -> list[float]:
    """Serve full rows to their end; returns the host time of steps in the middle."""
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


def _step(engine: Engine, clock: HostClock) -> float:
    before = clock.seconds
    engine.step()
    return clock.seconds - before
