"""How much processor time a turn costs in the controller, next to trio itself.

The real controller, ledger and rollout run under virtual time (`headrace simulate balanced`): an
environment answers after a drawn time, sampling and learning cost nothing. So all that is measured
is host time: trio, the episodes, the ledger, the records, and the simulated parts.

The floor is what trio alone takes under the same clock for the same number of tasks in flight: one
task spawned for each episode, one sleep for each turn. Both are measured in turn, several
times, and the best of each is taken; on a noisy machine compare the ratios.

  python benchmarks/controller.py --json results.json
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import trio

from headrace.pipeline.simulate.run import simulate
from headrace.pipeline.simulate.scenarios import Simulation, balanced, resolve
from headrace.pipeline.simulate.timers import Timers, collect_rarely, run_virtually

TURNS = (1, 10)
LENGTHS = 7  # different lengths of sleep, so that tasks wake one by one


@dataclass(frozen=True)
class Result:
    """The best of several rounds, in processor time.

    Attributes:
      ratio: of the controller's time to the floor's.
    """

    turns_per_episode: int
    in_flight: int
    microseconds_per_turn: float
    floor_microseconds_per_turn: float
    ratio: float


def make_simulation(turns: int, in_flight: int, least_turns: int) -> Simulation:
    """A run of so many episodes at once that takes at least so many turns."""
    source = balanced()
    settings = source.settings
    batch = in_flight // 4
    steps = max(4, least_turns // (turns * batch))
    return resolve(
        source,
        replace(
            settings,
            sim=replace(settings.sim, rows=in_flight, batch_groups=batch, turns=turns),
            run=replace(settings.run, steps=steps),
        ),
    )


def microseconds_per_turn(simulation: Simulation) -> float:
    """What the simulation itself reports."""
    return simulate(simulation).host_microseconds_per_turn


def floor_microseconds_per_turn(turns: int, in_flight: int, least_turns: int) -> float:
    """Spawn tasks that only sleep; each starts the next one at its end."""
    generations = max(2, least_turns // (turns * in_flight))

    async def main(timers: Timers) -> None:
        async def episode(number: int, generation: int) -> None:
            for turn in range(turns):
                await timers.sleep(1.0 + (number * LENGTHS + turn) % in_flight / in_flight)
            if generation + 1 < generations:
                nursery.start_soon(episode, number, generation + 1)

        async with trio.open_nursery() as nursery:
            for number in range(in_flight):
                nursery.start_soon(episode, number, 0)

    began = time.process_time()
    run_virtually(main, seed=0)
    return 1e6 * (time.process_time() - began) / (turns * in_flight * generations)


def measure(turns: int, in_flight: int, rounds: int, least_turns: int) -> Result:
    """Measure both in turn; return the best of each."""
    simulation = make_simulation(turns, in_flight, least_turns)
    pairs = [
        (
            microseconds_per_turn(simulation),
            floor_microseconds_per_turn(turns, in_flight, least_turns),
        )
        for _ in range(rounds)
    ]
    ours, floor = (min(times) for times in zip(*pairs, strict=True))
    return Result(turns, in_flight, ours, floor, ours / floor)


def show(results: Sequence[Result], write: Callable[[str], object] = print) -> None:
    """Print a table."""
    write("turns an episode   in flight   µs a turn   trio's floor   ratio")
    for result in results:
        write(
            f"{result.turns_per_episode:16}{result.in_flight:12}"
            f"{result.microseconds_per_turn:12.1f}{result.floor_microseconds_per_turn:15.1f}"
            f"{result.ratio:8.2f}"
        )


def main() -> None:
    """Measure all cases, print a table, and write a JSON file if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least-turns", type=int, default=10_000, help="of one round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    collect_rarely()
    results = [
        measure(turns, in_flight, arguments.rounds, arguments.least_turns)
        for in_flight in arguments.in_flight
        for turns in TURNS
    ]
    show(results)
    if arguments.json:
        record = {"python": platform.python_version(), "trio": trio.__version__}
        record |= {"results": [asdict(result) for result in results]}
        arguments.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
