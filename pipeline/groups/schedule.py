"""The settings of the schedule: the bounds of `policy_version`, checked together."""

from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError, check
from .policy_version import check_schedule


@dataclass(frozen=True)
class Schedule:
    """How far the data may lag behind the policy that it trains."""

    batch_groups: int = 16
    """Groups per update (B), >= 1."""
    max_mean_lag: int = 1
    """Bound of the mean lag in versions (eta), >= publish_every - 1; 0 is exactly on-policy."""
    max_lag: int = 4
    """Bound of every lag in versions (K), >= max_mean_lag; see over_age."""
    publish_every: int = 1
    """Updates between two publishes of the weights (m), >= 1."""
    max_reissues: int = 2
    """How often the task of a group that grew too old, or was cancelled, starts again, >= 0."""
    equal_rewards: Literal["keep", "drop"] = "keep"
    """Groups whose rewards are all equal, and so teach nothing: keep them or drop them."""
    deterministic: bool = False
    """Lockstep: no lag above max_mean_lag, and results that don't depend on timing."""
    over_age: Literal["drop", "mask"] = "drop"
    """Beyond max_lag: drop the group, or keep it and mask its tokens that are too old."""

    def __post_init__(self) -> None:
        error = check_schedule(
            batch_groups=self.batch_groups,
            max_mean_lag=self.max_mean_lag,
            max_lag=self.max_lag,
            publish_every=self.publish_every,
        )
        if error is not None:
            raise ConfigError(f"schedule.{error}")
        check(self.max_reissues >= 0, "schedule.max_reissues", self.max_reissues, ">= 0")
        known = self.equal_rewards in ("keep", "drop")
        check(known, "schedule.equal_rewards", self.equal_rewards, "'keep' or 'drop'")
        known = self.over_age in ("drop", "mask")
        check(known, "schedule.over_age", self.over_age, "'drop' or 'mask'")
        check(
            not self.deterministic or self.equal_rewards == "keep",
            "schedule.equal_rewards",
            self.equal_rewards,
            "'keep' with schedule.deterministic, as its groups have fixed places",
            hint="set --schedule.equal-rewards keep or --schedule.no-deterministic",
        )

    @property
    def lag_bound(self) -> int:
        """The bound of every group's lag, in versions, that holds for this schedule."""
        return self.max_mean_lag if self.deterministic else self.max_lag
