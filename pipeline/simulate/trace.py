"""Replays recorded episodes: turn lengths and latencies from a run's trajectories.jsonl.

Invariant: which recorded episode a simulated one replays is a pure function of the seed, the
task and the member, so nothing depends on the order in which episodes run. An episode is
replayed as a whole, from its first turn to its last, so that long episodes stay long; and the
members of a simulated group replay members of one recorded group, as a task that is long for
one of them is often long for all.

A run records the trajectories that it trained on. Its cancelled and dropped groups are missing,
and they are the longest ones: expect a simulation of such a trace to be too optimistic about
stragglers, the more the run dropped.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...envs.base import Task
from ..errors import ConfigError

_REMEMBERED_EPISODES = 65_536  # more than run at once


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One turn: what the policy sampled, what it then read, how long the answer took."""

    sampled_tokens: int
    observed_tokens: int
    env_seconds: float


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """One episode: the tokens before its first turn, and its turns, at least one."""

    prompt_tokens: int
    turns: tuple[RecordedTurn, ...]


@dataclass(frozen=True)
class Trace:
    """Recorded episodes by group.

    Attributes:
      groups: at least one, none empty, in the order of the file.
      left_out: records without a turn, which can't be replayed.
    """

    groups: tuple[tuple[RecordedEpisode, ...], ...]
    left_out: int = 0


def read_trace(path: Path) -> Trace:
    """Read a run's `trajectories.jsonl`.

    Raises:
      ConfigError: if it can't be read, is malformed (with the number of the line), or has no
        episode.
    """
    groups: dict[int, list[RecordedEpisode]] = {}
    left_out = 0
    for number, record in _records(path):
        try:
            group, episode = _whole(record["group"]), _episode(record)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"sim.trace: line {number} of {path} is no recorded trajectory "
                f"({_describe(error)}); give the trajectories.jsonl of a run"
            ) from error
        if episode is None:
            left_out += 1
        else:
            groups.setdefault(group, []).append(episode)
    if not groups:
        raise ConfigError(f"sim.trace must hold at least one episode, got none in {path}")
    return Trace(tuple(tuple(episodes) for episodes in groups.values()), left_out)


class Replay:
    """Draws recorded episodes for simulated ones.

    Every method is a pure function of its arguments, the trace and the seed.

    Example:
      >>> turn = RecordedTurn(sampled_tokens=20, observed_tokens=5, env_seconds=0.5)
      >>> replay = Replay(Trace(((RecordedEpisode(30, (turn, turn)),),)), seed=0)
      >>> replay.latency_seconds(Task("any"), 0, 1), replay.turns(Task("any"), 0)
      (0.5, 2)
    """

    def __init__(self, trace: Trace, seed: int):
        self._trace = trace
        self._seed = seed
        self._draw = lru_cache(maxsize=_REMEMBERED_EPISODES)(self._drawn)

    def __reduce__(self) -> tuple[type["Replay"], tuple[Trace, int]]:
        """Go to another process without what is remembered."""
        return Replay, (self._trace, self._seed)

    def episode(self, task: Task, member: int) -> RecordedEpisode:
        """Return the recorded episode that this one replays.

        Args:
          member: whatever tells the members of a group apart.
        """
        return self._draw(task.id, member)

    def turns(self, task: Task, member: int) -> int:
        """Return how many turns the episode has, >= 1."""
        return len(self.episode(task, member).turns)

    def prompt_tokens(self, task: Task, member: int) -> int:
        """Return the number of tokens before the first turn."""
        return self.episode(task, member).prompt_tokens

    def latency_seconds(self, task: Task, member: int, turn: int) -> float:
        """Return how long the environment takes to answer the turn, counted from 0."""
        return self.episode(task, member).turns[turn].env_seconds

    def sampled_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return how many tokens the policy samples in the turn, >= 1."""
        return self.episode(task, member).turns[turn].sampled_tokens

    def observed_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return how many tokens the environment's answer to the turn has."""
        return self.episode(task, member).turns[turn].observed_tokens

    def _drawn(self, task_id: str, member: int) -> RecordedEpisode:
        groups = self._trace.groups
        group = groups[_hash(self._seed, task_id) % len(groups)]
        return group[_hash(self._seed, task_id, member) % len(group)]


def _hash(*parts: object) -> int:
    """Hash alike in every process, unlike `hash`."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                yield number, _parse(line)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"sim.trace: can't read {path}: {error}; give the trajectories.jsonl of a run"
        ) from error


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return {}  # refused for what it lacks, with the number of the line
    return record if isinstance(record, dict) else {}


def _episode(record: dict[str, Any]) -> RecordedEpisode | None:
    turns = tuple(_turn(turn) for turn in record["turns"])
    if not turns:
        return None
    tokens = _whole(record["tokens"])
    prompt = tokens - sum(turn.sampled_tokens + turn.observed_tokens for turn in turns)
    if prompt < 0:
        raise ValueError(f"its {tokens} tokens are fewer than those of its turns")
    return RecordedEpisode(prompt, turns)


def _turn(turn: Any) -> RecordedTurn:
    if not (isinstance(turn, list) and len(turn) == 3):
        raise ValueError(f"a turn is [sampled, observed, seconds], not {turn!r}")
    sampled, observed = _whole(turn[0]), _whole(turn[1])
    if sampled < 1 or observed < 0:
        raise ValueError(f"a turn has {sampled} sampled and {observed} observed tokens")
    seconds = float(turn[2])
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"an environment took {seconds} seconds")
    return RecordedTurn(sampled, observed, seconds)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _describe(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    return str(error)
