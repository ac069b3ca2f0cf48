"""How long a call in a sandbox takes, warm and cold, for each backend that this machine has.

python benchmarks/sandbox.py --calls 100
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import trio

from headrace.envs.sandbox import SandboxConfig, SandboxUnavailable, open_sandbox

_PAUSE_SECONDS = 0.15  # for the sandboxes ahead of need to start
CASES = (("bwrap", 4), ("bwrap", 0), ("rlimit", 4), ("monty", 4))


async def measure(config: SandboxConfig, calls: int) -> tuple[list[float], list[float]]:
    """Time calls in one sandbox, and calls with the opening of a sandbox for each; seconds."""
    in_one, each_in_its_own = [], []
    async with open_sandbox(config) as box:
        await box.exec("print(1)")
        for _ in range(calls):
            began = time.perf_counter()
            await box.exec("print(1)")
            in_one.append(time.perf_counter() - began)
    for _ in range(calls):
        await trio.sleep(_PAUSE_SECONDS)
        began = time.perf_counter()
        async with open_sandbox(config) as box:
            await box.exec("print(1)")
            each_in_its_own.append(time.perf_counter() - began)
    return in_one, each_in_its_own


def _percentiles(seconds: Sequence[float]) -> str:
    """Return the least, which others on the machine disturb least, the median and the 90th."""
    ninetieth = sorted(seconds)[len(seconds) * 9 // 10]
    shown = (min(seconds), statistics.median(seconds), ninetieth)
    return "least {:6.2f} ms, p50 {:6.2f} ms, p90 {:6.2f} ms".format(*(1e3 * s for s in shown))


def main() -> None:
    """Print a line for each backend."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=100)
    calls = parser.parse_args().calls
    for backend, warm in CASES:
        config = SandboxConfig(backend=backend, allow_unsafe=True, warm=warm)
        try:
            in_one, each = trio.run(measure, config, calls)
        except SandboxUnavailable as problem:
            print(f"{backend}: {problem}")
            continue
        name = f"{backend}, {'warm' if warm else 'cold'}"
        print(f"{name:14} one sandbox: {_percentiles(in_one)}   each: {_percentiles(each)}")


if __name__ == "__main__":
    main()
