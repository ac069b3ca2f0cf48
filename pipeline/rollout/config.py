"""Settings of the rollout: how episodes run and what happens when they fail."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..errors import check
from ..sampling import Sampling

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
    top_k: int = 0
    """Only so many of the most likely tokens are drawn; 0 is no limit."""
    top_p: float = 1.0
    """Only the fewest most likely tokens whose mass reaches this share are drawn; in (0, 1]. What
    cuts mean for the learner: see algorithm.importance.target."""
    min_p: float = 0.0
    """Only tokens at least this times as likely as the most likely one are drawn; in [0, 1]."""
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
        self._check_draw()
        self._check_sizes()

    @cached_property  # each turn asks for it
    def sampling(self) -> Sampling:
        """The cuts, as a request asks for them."""
        return Sampling(top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)

    def _check_draw(self) -> None:
        check(self.top_k >= 0, "rollout.top_k", self.top_k, ">= 0")
        check(0 < self.top_p <= 1, "rollout.top_p", self.top_p, "in (0, 1]")
        check(0 <= self.min_p <= 1, "rollout.min_p", self.min_p, "in [0, 1]")

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
