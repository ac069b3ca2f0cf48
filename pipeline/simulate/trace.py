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
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...envs.base import Task
from ..errors import ConfigError
from .workload import Course


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


@dataclass(frozen=True)
class Replay:
    """A script of recorded episodes.

    Example:
      >>> turn = RecordedTurn(sampled_tokens=20, observed_tokens=5, env_seconds=0.5)
      >>> replay = Replay(Trace(((RecordedEpisode(30, (turn, turn)),),)), seed=0)
      >>> replay.course(Task("any"), 0).latency_seconds
      [0.5, 0.5]
    """

    trace: Trace
    seed: int

    def course(self, task: Task, member_seed: int) -> Course:
        """Return the recorded course of the episode that this one replays."""
        episode = self.episode(task, member_seed)
        return Course(
            episode.prompt_tokens,
            [turn.sampled_tokens for turn in episode.turns],
            [turn.observed_tokens for turn in episode.turns],
            [turn.env_seconds for turn in episode.turns],
        )

    def episode(self, task: Task, member_seed: int) -> RecordedEpisode:
        """Return the recorded episode that this one replays.

        Args:
          member_seed: whatever tells the members of a group apart.
        """
        groups = self.trace.groups
        group = groups[_hash(self.seed, task.id) % len(groups)]
        return group[_hash(self.seed, task.id, member_seed) % len(group)]


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
