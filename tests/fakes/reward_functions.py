"""Reward functions that worker processes can import, good ones and bad ones."""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import trio

from headrace.envs import EnvironmentBroken, EpisodeRecord


def ask(episode: EpisodeRecord) -> str:
    return f"Score this answer from 0 to 1: {episode.answer}"


def length(episode: EpisodeRecord) -> float:
    return float(len(episode.answer))


def right(episode: EpisodeRecord) -> bool:
    return episode.answer == episode.task.data["answer"]


def nothing(episode: EpisodeRecord) -> None:
    return None


def raises(episode: EpisodeRecord) -> float:
    raise ValueError("no such answer")


def hangs(episode: EpisodeRecord) -> float:
    time.sleep(60.0)
    return 0.0


def hangs_in_c(episode: EpisodeRecord) -> float:
    return float(len(str(10 ** (10**8))))  # one call into C, which no signal handler interrupts


def exits(episode: EpisodeRecord) -> float:
    os._exit(0)


def not_finite(episode: EpisodeRecord) -> float:
    return float("nan")


def text(episode: EpisodeRecord) -> str:
    return "1.0"


async def length_later(episode: EpisodeRecord) -> float:
    async with trio.open_nursery() as nursery:  # a loop of its own, and a thread that trio keeps
        nursery.start_soon(trio.to_thread.run_sync, len, "")
    return float(len(episode.answer))


async def raises_in_a_nursery(episode: EpisodeRecord) -> float:
    async with trio.open_nursery():
        raise KeyError("here")


async def breaks_in_a_nursery(episode: EpisodeRecord) -> float:
    async with trio.open_nursery():
        raise EnvironmentBroken("no judge")


async def blocks_the_loop(episode: EpisodeRecord) -> float:
    time.sleep(600.0)
    return 0.0


class Hidden(Exception):
    """Can't be described."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_hidden(episode: EpisodeRecord) -> float:
    raise Hidden


def raises_flood(episode: EpisodeRecord) -> float:
    raise ValueError("x" * 20_000_000)


def interrupts(episode: EpisodeRecord) -> float:
    raise KeyboardInterrupt


def leaves(episode: EpisodeRecord) -> float:
    raise SystemExit(0)


def forks(episode: EpisodeRecord) -> float:
    return float(os.fork() > 0)  # both come back


def goes_first(episode: EpisodeRecord) -> float:
    return float(Path("/proc/self/oom_score_adj").read_text())  # when memory runs out


def leaves_an_alarm(episode: EpisodeRecord) -> float:
    signal.alarm(600)
    return 2.0


def times_itself_out(episode: EpisodeRecord) -> float:
    """As answer checkers do that bring a deadline of their own; off the main thread it can't."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError("by its own alarm")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(600.0)
    return 0.0


def closes_everything(episode: EpisodeRecord) -> float:
    os.closerange(0, 100)
    return 1.0


def number_of_numpy(episode: EpisodeRecord) -> Any:
    import numpy as np  # noqa: PLC0415 - in the worker alone

    return np.float32(0.5)


VALUES: dict[str, Any] = {
    "bool": True,
    "fraction": Fraction(1, 2),
    "infinite": float("-inf"),
    "huge": 10**400,
    "complex": 1j,
    "bytes": b"1",
    "list": [1.0],
    "lock": threading.Lock(),
}


def by_answer(episode: EpisodeRecord) -> Any:
    """Do what the answer names."""
    if episode.answer in VALUES:
        return VALUES[episode.answer]
    functions: dict[str, Callable[[EpisodeRecord], Any]] = globals()
    return functions[episode.answer](episode)


def above_mean(episodes: Sequence[EpisodeRecord]) -> Any:
    import numpy as np  # noqa: PLC0415

    lengths = np.array([len(each.answer) for each in episodes])
    return lengths - lengths.mean()


LISTS: dict[str, Callable[[Sequence[EpisodeRecord]], Any]] = {
    "mean": above_mean,
    "skip": lambda episodes: tuple(1 if each.answer else None for each in episodes),
    "iterator": lambda episodes: iter([0.0, 1.0]),
    "endless": lambda episodes: itertools.repeat(1.0),
    "few": lambda episodes: [1.0],
    "nothing": lambda episodes: None,
    "number": lambda episodes: 1.0,
    "text": lambda episodes: "12",
    "dict": lambda episodes: {0: 1.0, 1: 2.0},
    "nan": lambda episodes: [0.0, float("nan")],
}


def by_first_answer(episodes: Sequence[EpisodeRecord]) -> Any:
    """Return what the first answer names."""
    return LISTS[episodes[0].answer](episodes)


def process(episode: EpisodeRecord) -> float:
    return float(os.getpid())


def leaves_a_thread(episode: EpisodeRecord) -> float:
    threading.Thread(target=time.sleep, args=(60.0,), daemon=True).start()
    return 2.0


_CALLS = itertools.count(1)


async def blocks_at_times(episode: EpisodeRecord) -> float:
    """Block the loop in each eighth call of a process, for ever."""
    if next(_CALLS) % 8 == 0:
        time.sleep(600.0)
    return float(os.getpid())


def hangs_or_times_itself_out_at_times(episode: EpisodeRecord) -> float:
    """Do either in some calls of a process."""
    call = next(_CALLS) % 16
    if call == 3:
        return times_itself_out(episode)
    return hangs(episode) if call == 14 else float(os.getpid())


HARM = {
    "raise": raises,
    "hang": hangs,
    "block": blocks_the_loop,
    "exit": exits,
    "none": nothing,
    "nan": not_finite,
    "text": text,
}


def sometimes(kind: str, share: float, episode: EpisodeRecord) -> object:
    """Do harm in a share of all calls."""
    if random.random() < share:
        return HARM[kind](episode)
    return random.random()
