"""Reward functions that worker processes can import, good ones and bad ones."""

import os
import random
import threading
import time
from collections.abc import Sequence

from headrace.envs import EpisodeRecord


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


def process(episode: EpisodeRecord) -> float:
    return float(os.getpid())


def leaves_a_thread(episode: EpisodeRecord) -> float:
    threading.Thread(target=time.sleep, args=(60.0,), daemon=True).start()
    return float(os.getpid())


def raises_on_bad(episode: EpisodeRecord) -> float:
    if episode.answer == "bad":
        raise KeyError(episode.answer)
    return float(os.getpid())


def fails_on_bad(episode: EpisodeRecord) -> float:
    if episode.answer == "bad":
        os._exit(3)
    return 1.0


def above_mean(episodes: Sequence[EpisodeRecord]) -> list[float]:
    mean = sum(len(each.answer) for each in episodes) / len(episodes)
    return [len(each.answer) - mean for each in episodes]


def skips_empty(episodes: Sequence[EpisodeRecord]) -> list[float | None]:
    return [float(len(episodes)) if each.answer else None for each in episodes]


def too_few(episodes: Sequence[EpisodeRecord]) -> list[float]:
    return [1.0]


HARM = {
    "raise": raises,
    "hang": hangs,
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
