"""What a step of a synchronous environment costs in threads and in processes, and a reward.

usage: PYTHONPATH=. python benchmarks/env_workers.py [STEPS]

The environment does nothing, so all of the time is the way to it and back.
"""

import os
import sys
import time
from collections.abc import Callable

import trio

from headrace.envs import (
    Env,
    EpisodeRecord,
    Message,
    Reward,
    StepResult,
    Task,
    in_processes,
    in_threads,
)
from headrace.envs.rewards import Scorer


class Idle:
    """Answers at once; reset says how long the answers to steps are."""

    def __enter__(self) -> "Idle":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def reset(self, task: Task, seed: int) -> list[Message]:
        """Start."""
        self.answer = Message("user", "x" * int(task.data["characters"]))
        return [self.answer]

    def step(self, message: Message) -> StepResult:
        """Answer."""
        return StepResult((self.answer,))


async def measure(make: Callable[[], Env], characters: int, steps: int) -> None:
    """Print the opening's time and the steps' median and 99th percentile."""
    began = time.perf_counter()
    for name in ("cold", "warm"):
        async with make() as env:
            opened = time.perf_counter()
            await env.reset(Task("t", {"characters": characters}), 0)
            seconds = sorted([await timed(env) for _ in range(steps)])
        middle, late = seconds[steps // 2], seconds[steps * 99 // 100]
        print(
            f"  {characters:7} characters, {name}: open {1e3 * (opened - began):7.2f} ms, "
            f"step {1e3 * middle:.3f} ms, p99 {1e3 * late:.3f} ms"
        )
        began = time.perf_counter()


async def timed(env: Env) -> float:
    """Return the seconds of one step."""
    began = time.perf_counter()
    await env.step(Message("assistant", "move"))
    return time.perf_counter() - began


def nothing(episode: EpisodeRecord) -> float:
    """Score at once."""
    return 0.0


async def measure_reward(calls: int) -> None:
    """Print the time of the first call of a plain reward function, and the others' median."""
    scorer = Scorer([Reward("nothing", nothing, concurrency=1)])
    episode = EpisodeRecord(Task("t"), (Message("user", "?"), Message("assistant", "1")))
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        await scorer.score(episode)
        seconds.append(time.perf_counter() - began)
    middle = sorted(seconds)[calls // 2]
    print(f"a reward: first {1e3 * seconds[0]:.0f} ms, then {1e3 * middle:.3f} ms")


def main() -> None:
    """Measure both ways with short and long answers."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {steps} steps each")
    for characters in (100, 1_000_000):
        few = steps if characters < 1000 else max(1, steps // 20)
        print("in_threads")
        trio.run(measure, in_threads(Idle), characters, few)
        print("in_processes")
        trio.run(measure, in_processes(Idle, processes=1), characters, few)
    trio.run(measure_reward, steps)


if __name__ == "__main__":
    # Once more as a module: a worker process can't import the class of a script.
    import env_workers

    env_workers.main()
