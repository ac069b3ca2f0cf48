"""Which simulated settings are worth a choice, and which one to take.

Pure functions of outcomes: neither their order nor the units of throughput change a result.
A setting is on the frontier (Pareto-optimal) if no other one is at least as good in throughput,
mean lag and waste, and better in one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Setting:
    """What is tuned: the schedule's two bounds, the load, and the split of the chips.

    Attributes:
      max_mean_lag: eta, in versions.
      max_lag: K, in versions.
      episodes: at most so many in flight.
      sampler_chips: 0 where no hardware is given.
      learner_chips: as `sampler_chips`.
    """

    max_mean_lag: int
    max_lag: int
    episodes: int
    sampler_chips: int = 0
    learner_chips: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a simulation said about a setting.

    Attributes:
      groups_per_second: that were trained on, in simulated seconds. Unlike the efficiency it
        compares settings with other loads and splits.
      efficiency: achieved rate over what the setting's own capacities allow, 0..1.
      waste: share of the sampling work that was thrown away, 0..1.
      lag_mean: in versions.
      lag_max: in versions.
      bottleneck: in words.
    """

    setting: Setting
    groups_per_second: float
    efficiency: float
    waste: float
    lag_mean: float
    lag_max: int
    bottleneck: str = ""


@dataclass(frozen=True)
class Rule:
    """How one setting is chosen from many.

    Attributes:
      slack: a setting may be slower than the fastest by this share, 0..1.
      max_waste: and may throw away this share of the sampling work, 0..1.
    """

    slack: float = 0.05
    max_waste: float = 0.15

    def __str__(self) -> str:
        return (
            f"the smallest mean lag within {self.slack:.0%} of the best throughput "
            f"at a waste of at most {self.max_waste:.0%}"
        )


def dominates(one: Outcome, other: Outcome) -> bool:
    """Return whether `one` is nowhere worse than `other`, and somewhere better.

    Example:
      >>> slow = Outcome(Setting(1, 4, 8), 1.0, 0.5, 0.1, lag_mean=1.0, lag_max=4)
      >>> fast = Outcome(Setting(1, 8, 8), 2.0, 0.9, 0.1, lag_mean=1.0, lag_max=8)
      >>> dominates(fast, slow), dominates(slow, fast), dominates(fast, fast)
      (True, False, False)
    """
    ours, theirs = _costs(one), _costs(other)
    no_worse = all(a <= b for a, b in zip(ours, theirs, strict=True))
    return no_worse and ours != theirs


def frontier(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that none of the others dominates, in the given order."""
    return [
        outcome for outcome in outcomes if not any(dominates(other, outcome) for other in outcomes)
    ]


def recommend(outcomes: Sequence[Outcome], rule: Rule) -> Outcome:
    """Return the outcome that the rule chooses.

    It is on the frontier. Ties go to less waste, then to more throughput, then to fewer episodes
    and smaller bounds. If every setting wastes more than the rule allows, the choice is among
    those that waste least.

    Args:
      outcomes: at least one.
    """
    allowed_waste = max(rule.max_waste, min(outcome.waste for outcome in outcomes))
    frugal = [outcome for outcome in outcomes if outcome.waste <= allowed_waste]
    fast_enough = (1 - rule.slack) * max(outcome.groups_per_second for outcome in frugal)
    candidates = [outcome for outcome in frugal if outcome.groups_per_second >= fast_enough]
    return min(candidates, key=_preference)


def _costs(outcome: Outcome) -> tuple[float, float, float]:
    return (-outcome.groups_per_second, outcome.lag_mean, outcome.waste)


def _preference(outcome: Outcome) -> tuple[float, float, float, int, Setting]:
    setting = outcome.setting
    return (outcome.lag_mean, outcome.waste, -outcome.groups_per_second, setting.episodes, setting)
