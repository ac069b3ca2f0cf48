"""What the simulated episodes do: how many turns, how long, how late, with which end.

Everything is a pure function of the task, the episode's seed and the turn, so it depends on no
schedule: the same episode is the same work under every setting. A task that is started again
has another seed, hence other durations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

from ...envs.base import Task
from ...envs.latency import LatencyConfig, latency_seconds
from .draws import Distribution, uniform

# Streams of random numbers of one episode; the last two are by turn.
_SUCCESS, _FAILURE, _LENGTH, _LATENCY = 0, 1, 2**20, 2**21


class Course(NamedTuple):
    """One episode, planned to its end: for each turn what is sampled, and what is answered when.

    Attributes:
      prompt_tokens: before the first turn.
      sampled_tokens: by turn, each >= 1, at least one turn.
      observed_tokens: of the environment's answer, by turn.
      latency_seconds: how long the environment takes to answer, by turn.
    """

    prompt_tokens: int
    sampled_tokens: Sequence[int]
    observed_tokens: Sequence[int]
    latency_seconds: Sequence[float]


class Script(Protocol):
    """Knows the course of every episode."""

    def course(self, task: Task, member_seed: int) -> Course:
        """Return the course of one episode: a pure function of its task and its seed."""
        ...


@dataclass(frozen=True)
class Workload:
    """What episodes do, and how they end.

    Attributes:
      success_probability: of a reward of 1; the others get 0.
      failure_probability: that an episode's environment breaks at its last answer.
    """

    script: Script
    success_probability: float = 0.5
    failure_probability: float = 0.0

    def reward(self, member_seed: int) -> float:
        """Return the reward of an episode that ends well."""
        return float(uniform(member_seed, _SUCCESS) < self.success_probability)

    def breaks(self, member_seed: int) -> bool:
        """Return whether the episode's environment breaks."""
        probability = self.failure_probability
        return probability > 0 and uniform(member_seed, _FAILURE) < probability


@dataclass(frozen=True)
class DrawnScript:
    """Lengths and latencies that are independent draws for each (episode, turn).

    Attributes:
      latency: a distribution, or a recipe's `env.latency`, in which the last answer of an
        episode, the one that only scores it, comes at once.
    """

    latency: Distribution | LatencyConfig
    turns: int = 1
    prompt_tokens: int = 2
    turn_tokens: Distribution = field(default_factory=lambda: Distribution("constant", 1.0))
    observed_tokens: int = 1

    def course(self, task: Task, member_seed: int) -> Course:
        """Draw the lengths and the latencies of an episode; all else is the same for all."""
        return Course(
            self.prompt_tokens,
            self._sampled_tokens(member_seed),
            self._observed_tokens,
            self._latency_seconds(task, member_seed),
        )

    def _latency_seconds(self, task: Task, member_seed: int) -> list[float]:
        if isinstance(self.latency, Distribution):
            return _draws(self.latency, member_seed, _LATENCY, self.turns)
        config, turns = self.latency, range(self.turns - 1)
        return [*(latency_seconds(config, task.id, member_seed, turn) for turn in turns), 0.0]

    def _sampled_tokens(self, member_seed: int) -> Sequence[int]:
        if self.turn_tokens.kind == "constant":
            return self._constant_tokens
        draws = _draws(self.turn_tokens, member_seed, _LENGTH, self.turns)
        return [max(1, round(tokens)) for tokens in draws]

    # Courses are kept to the end of a run, so what all have in common is there once.

    @cached_property
    def _constant_tokens(self) -> Sequence[int]:
        return (round(self.turn_tokens.mean),) * self.turns

    @cached_property
    def _observed_tokens(self) -> Sequence[int]:
        return (self.observed_tokens,) * self.turns


def _draws(distribution: Distribution, seed: int, stream: int, turns: int) -> list[float]:
    """Draw for each turn."""
    places = range(stream, stream + turns)
    return [distribution.draw(uniform(seed, place)) for place in places]


@dataclass(frozen=True)
class CoarseScript:
    """Another script in which one token stands for many; nothing has less than one token."""

    inner: Script
    coarsening: int

    def course(self, task: Task, member_seed: int) -> Course:
        """Return the inner script's, with fewer tokens."""
        course = self.inner.course(task, member_seed)
        return Course(
            self._coarse(course.prompt_tokens),
            [self._coarse(tokens) for tokens in course.sampled_tokens],
            [self._coarse(tokens) for tokens in course.observed_tokens],
            course.latency_seconds,
        )

    def _coarse(self, tokens: int) -> int:
        return max(1, round(tokens / self.coarsening))
