"""Settings of the rollout: how episodes run and what happens when they fail."""

import math
from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError

FailurePolicy = Literal["retry", "survivors", "drop"]


@dataclass(frozen=True)
class RolloutConfig:
    """Limits of an episode and of a group.

    Raises:
      ConfigError: for impossible numbers.
    """

    group_size: int = 16
    """G: episodes of each task."""
    max_turns: int = 4
    """The policy speaks at most so often in an episode."""
    max_turn_tokens: int = 16
    """Token budget of one turn; a turn that doesn't close within it ends the episode."""
    max_tokens: int = 64
    """Token budget of an episode: prompt, turns and observations together."""
    temperature: float = 1.0
    """Sampling temperature; the learner uses the same."""
    max_episodes: int = 256
    """At most so many episodes run at once."""
    env_deadline_seconds: float = 60.0
    """Deadline of each call of an environment: open, reset, step."""
    close_deadline_seconds: float = 10.0
    """Deadline of closing an environment, which nothing can cut short."""
    sample_deadline_seconds: float = 600.0
    """Deadline of one turn of the policy, queueing included."""
    failure: FailurePolicy = "retry"
    """A failed member is tried again, or left out (survivors), or its group is dropped."""
    max_retries: int = 2
    """With failure=retry: at most so many further tries of a member."""
    min_group_size: int = 2
    """With failure=survivors: fewer surviving members drop the group."""

    def __post_init__(self) -> None:
        for name in ("group_size", "max_turns", "max_turn_tokens", "max_episodes"):
            _at_least(name, getattr(self, name), 1)
        _at_least("max_tokens", self.max_tokens, 2)
        _at_least("max_retries", self.max_retries, 0)
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise ConfigError(
                f"rollout.temperature must be >= 0 and finite, got {self.temperature}; "
                "set --rollout.temperature"
            )
        for name in ("env_deadline_seconds", "sample_deadline_seconds"):
            _positive(name, getattr(self, name))
        if self.max_episodes < self.group_size:
            raise ConfigError(
                f"rollout.max_episodes must be >= rollout.group_size ({self.group_size}), got "
                f"{self.max_episodes}; raise --rollout.max-episodes or lower --rollout.group-size"
            )
        survivors = self.failure == "survivors"
        if survivors and not 1 <= self.min_group_size <= self.group_size:
            raise ConfigError(
                f"rollout.min_group_size must be in 1..{self.group_size} (group_size), got "
                f"{self.min_group_size}; set --rollout.min-group-size"
            )


def _at_least(name: str, value: int, lowest: int) -> None:
    if value < lowest:
        flag = name.replace("_", "-")
        raise ConfigError(f"rollout.{name} must be >= {lowest}, got {value}; set --rollout.{flag}")


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        flag = name.replace("_", "-")
        raise ConfigError(
            f"rollout.{name} must be > 0 and finite, got {value}; set --rollout.{flag}"
        )
