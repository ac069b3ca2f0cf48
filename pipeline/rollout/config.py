"""Settings of the rollout: how episodes run and what happens when they fail."""

from dataclasses import dataclass
from typing import Literal

from ..errors import check

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
    """Deadline of one turn of the policy, queueing included; also of an episode's rewards."""
    failure: FailurePolicy = "retry"
    """A failed member is tried again, or left out (survivors), or its group is dropped."""
    max_retries: int = 2
    """With failure=retry: at most so many further tries of a member."""
    min_group_size: int = 2
    """With failure=survivors: fewer surviving members drop the group."""

    def __post_init__(self) -> None:
        for name in ("group_size", "max_turns", "max_turn_tokens", "min_group_size"):
            value = getattr(self, name)
            check(value >= 1, f"rollout.{name}", value, ">= 1")
        check(self.max_tokens >= 2, "rollout.max_tokens", self.max_tokens, ">= 2")
        check(self.max_retries >= 0, "rollout.max_retries", self.max_retries, ">= 0")
        for name in ("env_deadline_seconds", "close_deadline_seconds", "sample_deadline_seconds"):
            value = getattr(self, name)
            check(value > 0, f"rollout.{name}", value, "> 0 and finite")
        check(self.temperature >= 0, "rollout.temperature", self.temperature, ">= 0 and finite")
        self._check_sizes()

    def _check_sizes(self) -> None:
        check(
            self.max_episodes >= self.group_size,
            "rollout.max_episodes",
            self.max_episodes,
            f">= rollout.group_size ({self.group_size})",
            hint="raise --rollout.max-episodes or lower --rollout.group-size",
        )
        check(
            self.failure != "survivors" or self.min_group_size <= self.group_size,
            "rollout.min_group_size",
            self.min_group_size,
            f"<= rollout.group_size ({self.group_size})",
        )
