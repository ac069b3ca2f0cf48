"""How fast the sampler serves a tiny model: requests, tokens, and tokens per CPU-second.

Two workloads, each with its own mix of prompt lengths drawn with a fixed seed:

- `choices`: prompts of 3 to 25 tokens, one sampled token. Prefill and hand-over dominate.
- `turns`: prompts of 8 to 16 tokens, 16 sampled tokens. Decoding dominates.

A fixed number of tasks asks for one completion after the other, as episodes do, so the time
includes trio's scheduling and the way to the device thread and back. The clock starts after
compilation and one warm-up round. CPU time is that of the whole process: on a shared machine
it is the steadier number. Each case is measured several times and the best is reported.

With `--versions 2` the requests ask in turn for one of two policy versions, both held: a
dispatch serves one version, so each is as large as before and half as full.

  python benchmarks/sampler.py --rows 64 128 --json results.json
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import trio

from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.parameters import init, unstack
from headrace.pipeline.sampler.config import SamplerConfig
from headrace.pipeline.sampler.programs import compile_programs
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.types import SampleRequest

VOCAB = 32
MODEL = ModelConfig(num_layers=2, width=64, num_heads=4, num_kv_heads=2, head_width=16)


@dataclass(frozen=True)
class Workload:
    """Prompts of `shortest` to `longest` tokens, `max_tokens` sampled for each."""

    shortest: int
    longest: int
    max_tokens: int
    requests: int


WORKLOADS = {
    "choices": Workload(shortest=3, longest=25, max_tokens=1, requests=3600),
    "turns": Workload(shortest=8, longest=16, max_tokens=16, requests=1200),
}


@dataclass(frozen=True)
class Result:
    """The best of several rounds."""

    workload: str
    config: SamplerConfig
    versions: int
    compile_seconds: float
    requests_per_second: float
    tokens_per_second: float
    requests_per_cpu_second: float
    tokens_per_cpu_second: float


def make_requests(workload: Workload, seed: int, versions: int) -> list[SampleRequest]:
    """Requests without stop ids, so that every run samples the same number of tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(workload.shortest, workload.longest + 1, workload.requests)
    return [
        SampleRequest(
            tokens=rng.integers(0, VOCAB, length).astype(np.int32),
            max_tokens=workload.max_tokens,
            stop_ids=(),
            key=(index, seed),
            version=index % versions,
        )
        for index, length in enumerate(lengths.tolist())
    ]


async def serve_all(
    sampler: NativeSampler, requests: Sequence[SampleRequest], tasks: int
) -> tuple[float, float]:
    """Let `tasks` tasks work the requests off; return wall and CPU seconds."""
    waiting = iter(requests)

    async def work() -> None:
        for request in waiting:
            await sampler.sample(request)

    wall, cpu = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(work)
    return time.perf_counter() - wall, time.process_time() - cpu


async def measure(
    name: str, config: SamplerConfig, *, tasks: int, rounds: int, versions: int
) -> Result:
    workload = WORKLOADS[name]
    started = time.perf_counter()
    programs = compile_programs(config, MODEL, VOCAB)
    compile_seconds = time.perf_counter() - started
    make = jax.jit(make_params)
    sampler = NativeSampler(config, MODEL, VOCAB, programs=programs)
    async with trio.open_nursery() as nursery:
        await nursery.start(sampler.serve)
        with ExitStack() as holds:
            for version in range(versions):
                await sampler.publish(make(jax.random.key(version)), version)
                holds.enter_context(sampler.hold(version))
            await serve_all(
                sampler, make_requests(workload, 0, versions)[: 2 * config.rows], tasks
            )
            timings = [
                await serve_all(sampler, make_requests(workload, seed, versions), tasks)
                for seed in range(1, rounds + 1)
            ]
        nursery.cancel_scope.cancel()
    wall, cpu = (min(column) for column in zip(*timings, strict=True))
    tokens = workload.requests * workload.max_tokens
    return Result(
        workload=name,
        config=config,
        versions=versions,
        compile_seconds=compile_seconds,
        requests_per_second=workload.requests / wall,
        tokens_per_second=tokens / wall,
        requests_per_cpu_second=workload.requests / cpu,
        tokens_per_cpu_second=tokens / cpu,
    )


def make_params(key: jax.Array) -> Any:
    return unstack(init(MODEL, VOCAB, key))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Requests and tokens per second of the sampler.")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--prefill-tokens", type=int, default=16)
    parser.add_argument("--decode-tokens", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=480, help="requests under way at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--versions", type=int, default=1, help="policy versions at once")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    results = []
    for rows in arguments.rows:
        for name in arguments.workloads:
            config = SamplerConfig(
                rows=rows,
                prefill_rows=rows,
                prefill_tokens=arguments.prefill_tokens,
                decode_tokens=arguments.decode_tokens,
            )
            run = partial(
                measure,
                tasks=arguments.tasks,
                rounds=arguments.rounds,
                versions=arguments.versions,
            )
            result = trio.run(run, name, config)
            results.append(asdict(result))
            print(
                f"{name:8} rows {rows:4}: {result.requests_per_second:7.0f} requests/s "
                f"{result.tokens_per_second:7.0f} tokens/s "
                f"{result.tokens_per_cpu_second:7.0f} tokens/CPU-s "
                f"(compiled in {result.compile_seconds:.1f} s)"
            )
    if arguments.json is not None:
        versions = {"python": platform.python_version(), "jax": jax.__version__}
        report = {"versions": versions, "model": asdict(MODEL), "results": results}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
