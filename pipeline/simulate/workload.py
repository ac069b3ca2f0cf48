"""What the simulated episodes do: how many turns, how long, how late, with which end.

Everything is a pure function of the task, the episode's seed and the turn, so it depends on no
schedule: the same episode is the same work under every setting. A task that is started again
has another seed, hence other durations.
"""

from dataclasses import dataclass, field
from typing import Protocol

from ...envs.base import Task
from ...envs.latency import LatencyConfig, latency_seconds
from .draws import Distribution, uniform

# Streams of random numbers of one episode; the last two are by turn.
_SUCCESS, _FAILURE, _LENGTH, _LATENCY = 0, 1, 2**20, 2**21


class Script(Protocol):
    """The course of every episode; `member` is the episode's seed."""

    def turns(self, task: Task, member: int) -> int:
        """Return how often the policy speaks until the environment ends the episode, >= 1."""
        ...

    def prompt_tokens(self, task: Task, member: int) -> int:
        """Return the number of tokens before the first turn."""
        ...

    def latency_seconds(self, task: Task, member: int, turn: int) -> float:
        """Return how long the environment takes to answer the turn, counted from 0."""
        ...

    def sampled_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return how many tokens the policy samples in the turn, >= 1."""
        ...

    def observed_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return how many tokens the environment's answer to the turn has."""
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

    def reward(self, member: int) -> float:
        """Return the reward of an episode that ends well."""
        return float(uniform(member, _SUCCESS) < self.success_probability)

    def breaks(self, member: int) -> bool:
        """Return whether the episode's environment breaks."""
        return uniform(member, _FAILURE) < self.failure_probability


@dataclass(frozen=True)
class DrawnScript:
    """Lengths and latencies that are independent draws for each (episode, turn).

    Attributes:
      latency: a distribution, or a recipe's `env.latency`, in which the last answer of an
        episode, the one that only scores it, comes at once.
    """

    latency: Distribution | LatencyConfig
    every_turns: int = 1
    every_prompt_tokens: int = 2
    turn_tokens: Distribution = field(default_factory=lambda: Distribution("constant", 1.0))
    every_observed_tokens: int = 1

    def turns(self, task: Task, member: int) -> int:
        """Return the number that is the same for all episodes."""
        return self.every_turns

    def prompt_tokens(self, task: Task, member: int) -> int:
        """Return the number that is the same for all tasks."""
        return self.every_prompt_tokens

    def latency_seconds(self, task: Task, member: int, turn: int) -> float:
        """Draw a latency."""
        if isinstance(self.latency, Distribution):
            return self.latency.draw(uniform(member, _LATENCY + turn))
        last = turn + 1 == self.every_turns
        return 0.0 if last else latency_seconds(self.latency, task.id, member, turn)

    def sampled_tokens(self, task: Task, member: int, turn: int) -> int:
        """Draw a length."""
        if self.turn_tokens.kind == "constant":
            return round(self.turn_tokens.mean)
        return max(1, round(self.turn_tokens.draw(uniform(member, _LENGTH + turn))))

    def observed_tokens(self, task: Task, member: int, turn: int) -> int:
        """Return the number that is the same for all answers."""
        return self.every_observed_tokens
