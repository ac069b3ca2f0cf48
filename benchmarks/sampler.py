"""What sampling costs: tokens per second and CPU-second, prefix reuse, compilations.

  python benchmarks/sampler.py --models m4,m30 --rows 1,8,32 --json FILE

- `MODEL/ROWS`: plain decoding, full rows (`sampler_plain.py`), beside a roofline, the matrix
  products alone (`roofline.py`), of the same run.
- `agentic_small`: multi-turn episodes with tools (`sampler_agentic.py`). `prefill_tokens` of
  them against `conversation_tokens`, the prompt of each group and every tool reply counted
  once: a ratio of 1 means that nothing is prefilled twice.
- `compilations_after_warmup`: of all of these and of 1,000 random requests
  (`sampler_random.py`).
- `host_microseconds_per_dispatch`: while 128 rows decode (`sampler_host.py`). In the cases of
  plain decoding it also has what requests cost when they begin and end.

Models, prompts and latencies are in `workload.py`, the same for all engines. Only ratios of
one run mean much on a shared machine, best those of CPU time. To compare with another library,
give the command of its driver; it may be in an environment of its own:

  python benchmarks/sampler.py --models m4 --rows 1,8,32 --passes 2 \\
      --peer "path/to/python driver.py --what sampler --model m4"

It must print a line `RESULT {json}`, which is put under `peers`. In each pass our cases are
measured first, then each peer, so they alternate; the best of all passes counts. If a result
has `results` with entries such as `"m4/b32": {"call_cpu_s_min": SECONDS}`, of calls that
sample 64 tokens in each of 32 rows, `times_peers` has our tokens per CPU-second as a multiple;
and for `"gen_cpu_s_per_traj": SECONDS` how many of our trajectories cost what one of theirs does.
"""

import argparse
import json
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import trio

import sampler_agentic
import sampler_host
import sampler_plain
import sampler_random
from headrace.pipeline.models.config import StoredWeights
from headrace.pipeline.sampler.config import SamplerConfig
from peers import run_peer, times_peers, times_peers_trajectory
from serving import Build, build
from workload import MODELS, VOCAB_SIZE, Agentic, Plain

Report = dict[str, Any]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What sampling costs.")
    parser.add_argument("--models", type=_names, default=["m4", "m30"], help="comma-separated")
    parser.add_argument("--rows", type=_numbers, default=[1, 8, 32], help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5, help="of each case and pass")
    parser.add_argument("--passes", type=int, default=1, help="over all cases and peers")
    parser.add_argument("--waves", type=int, default=3, help="of agentic episodes; 0 for none")
    parser.add_argument("--agentic-model", choices=list(MODELS), default="m05")
    parser.add_argument(
        "--latency-seconds", type=float, help="of every tool; default: the workload's rule"
    )
    parser.add_argument("--host-rows", type=int, default=128, help="0 leaves the host time out")
    parser.add_argument("--requests", type=int, default=1000, help="random ones; 0 for none")
    parser.add_argument("--decode-tokens", type=int, default=32, help="per dispatch")
    parser.add_argument("--prefill-tokens", type=int, default=32, help="per row and dispatch")
    parser.add_argument("--prefill-lanes", type=int, default=32, help="per dispatch, at most")
    parser.add_argument("--weights", choices=get_args(StoredWeights), default="float32")
    parser.add_argument("--peer", action="append", default=[], help="command of a peer's driver")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse()
    sizes = SamplerConfig(
        rows=options.prefill_lanes,
        decode_tokens=options.decode_tokens,
        prefill_tokens=options.prefill_tokens,
        prefill_lanes=options.prefill_lanes,
        weights=options.weights,
    )
    plain, peers = measure_plain(options, sizes)
    report = plain | measure_agentic(options, sizes) | measure_random(options, sizes)
    report |= measure_host(options, sizes)
    report |= summarize(report)
    if peers:
        report |= {"peers": peers, "times_peers": compare(plain, report, peers)}
    report["versions"] = {"python": platform.python_version(), "jax": jax.__version__}
    print(json.dumps(report, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure_plain(
    options: argparse.Namespace, sizes: SamplerConfig
) -> tuple[Report, list[Report]]:
    """Measure plain decoding and the peers, in turn; return both."""
    work = Plain()
    builds: dict[str, Build] = {}
    for model in options.models:
        for rows in options.rows:
            config = sampler_plain.fit(sizes, work, rows)
            progress(f"compiling {model}/{rows}")
            builds[f"{model}/{rows}"] = build(MODELS[model], VOCAB_SIZE, config)
    measured: dict[str, list[sampler_plain.PlainCosts]] = {case: [] for case in builds}
    peers = []
    for index in range(options.passes):
        for case, built in builds.items():
            run = partial(sampler_plain.measure_plain, rounds=options.rounds)
            costs = trio.run(run, built, work)
            measured[case].append(costs)
            rate = sampler_plain.report(built, work, costs)["tokens_per_cpu_second"]
            progress(f"pass {index}: {case}: {rate:.0f} tokens per CPU-second")
        for command in options.peer:
            progress(f"pass {index}: {command}")
            peers.append(run_peer(command) | {"pass": index})
    report = {
        case: sampler_plain.report(built, work, sampler_plain.best(measured[case]))
        for case, built in builds.items()
    }
    return report, peers


def measure_agentic(options: argparse.Namespace, sizes: SamplerConfig) -> Report:
    """Measure the episodes with tools."""
    if options.waves == 0:
        return {}
    progress("agentic_small")
    work = Agentic()
    built = build(MODELS[options.agentic_model], VOCAB_SIZE, sampler_agentic.fit(sizes, work))
    run = partial(
        sampler_agentic.measure_agentic, waves=options.waves, latency=options.latency_seconds
    )
    return {"agentic_small": trio.run(run, built, work)}


def measure_random(options: argparse.Namespace, sizes: SamplerConfig) -> Report:
    """Serve random requests to a tiny model and count what is compiled meanwhile."""
    if options.requests == 0:
        return {}
    progress("random requests")
    built = build(MODELS["smoke"], VOCAB_SIZE, sampler_random.fit(sizes))
    return {"random_requests": trio.run(sampler_random.measure_random, built, options.requests)}


def measure_host(options: argparse.Namespace, sizes: SamplerConfig) -> Report:
    """Measure the host time of dispatches that serve a tiny model."""
    if options.host_rows == 0:
        return {}
    progress("host time")
    worst = sampler_host.fit(sizes, options.host_rows)
    report = sampler_host.measure_host(build(MODELS["smoke"], VOCAB_SIZE, worst))
    usual = sampler_host.fit(sizes, options.host_rows, pages_per_dispatch=1 / 4)
    built = build(MODELS["smoke"], VOCAB_SIZE, usual)
    return {"host": report | {"usual": sampler_host.measure_host(built, rounds=1)}}


def summarize(cases: Report) -> Report:
    """Lift the numbers that are promises to the top of the report."""
    summary: Report = {
        "compilations_after_warmup": sum(case["compilations"] for case in cases.values())
    }
    if "host" in cases:
        name = "host_microseconds_per_dispatch"
        summary[name] = cases["host"][name]
    if "agentic_small" in cases:
        agentic = cases["agentic_small"]
        summary |= {key: agentic[key] for key in ("prefill_tokens", "conversation_tokens")}
    return summary


def compare(plain: Report, cases: Report, peers: list[Report]) -> dict[str, float]:
    """Give our rates as multiples of the best peer's."""
    ours = {case: numbers["tokens_per_cpu_second"] for case, numbers in plain.items()}
    times = times_peers(ours, peers, new_tokens=Plain().new_tokens)
    if "agentic_small" in cases:
        cost = cases["agentic_small"]["cpu_seconds_per_trajectory"]
        times |= times_peers_trajectory(cost, peers)
    return times


def progress(text: str) -> None:
    """Say what is being done; the report alone goes to the standard output."""
    print(text, file=sys.stderr, flush=True)


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        raise argparse.ArgumentTypeError(f"models must be of {sorted(MODELS)}, got {unknown}")
    return names


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
