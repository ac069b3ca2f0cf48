"""Wall time and CPU time side by side.

CPU time is that of all threads of the process: on a shared machine it is the steadier number,
and it shows work that a second core hides.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

LEAST_SECONDS = 0.2


@dataclass(frozen=True)
class Cost:
    """What a piece of work took, in seconds."""

    wall: float
    cpu: float


def measure(work: Callable[[], object]) -> Cost:
    """Do the work and measure it."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def measure_short(work: Callable[[], object]) -> Cost:
    """Do short work again and again for `LEAST_SECONDS`, and give the mean of one time.

    Linux brings the CPU time of threads that run up to date at its ticks only, milliseconds
    apart: of shorter intervals it tells too little.
    """
    times = 0
    start = time.perf_counter()

    def repeat() -> None:
        nonlocal times
        while time.perf_counter() - start < LEAST_SECONDS:
            work()
            times += 1

    whole = measure(repeat)
    return Cost(whole.wall / times, whole.cpu / times)


async def measure_async(work: Callable[[], Awaitable[object]]) -> Cost:
    """Do the work and measure it."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def quickest(costs: Iterable[Cost]) -> Cost:
    """The smallest wall time and the smallest CPU time, which may be of different rounds."""
    costs = list(costs)
    return Cost(min(cost.wall for cost in costs), min(cost.cpu for cost in costs))
