"""Which simulated settings are worth a choice, and which one to take.

Pure functions of outcomes: neither their order nor the unit of throughput changes a result.
Differences that another seed would undo count for nothing: throughput is compared in steps of
0.5 % of the best, mean lag in steps of 0.05, waste in steps of 0.5 %. A setting is on the
frontier (Pareto-optimal) if no other one is at least as good in all three and better in one; of
settings that are equal in all three, only the smallest is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_THROUGHPUT_STEPS, _LAG_STEPS, _WASTE_STEPS = 200, 20, 200


@dataclass(frozen=True, order=True)
class Setting:
    """What is tuned: the load, the schedule's two bounds, and the split of the chips.

    Smaller ones, in the order of the attributes, are preferred among equals.

    Attributes:
      episodes: at most so many in flight.
      max_mean_lag: eta, in versions.
      max_lag: K, in versions.
      sampler_chips: 0 where no hardware is given.
      learner_chips: as `sampler_chips`.
    """

    episodes: int
    max_mean_lag: int
    max_lag: int
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


class _Score(NamedTuple):
    """An outcome in steps that count; less is better in each."""

    lag: int
    waste: int
    slowness: int

    def dominates(self, other: "_Score") -> bool:
        """Whether it is nowhere worse, and somewhere better."""
        return self != other and all(a <= b for a, b in zip(self, other, strict=True))


def frontier(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes on the frontier, in the given order.

    Example:
      >>> slow = Outcome(Setting(8, 1, 4), 1.0, 0.5, waste=0.1, lag_mean=1.0, lag_max=4)
      >>> fast = Outcome(Setting(8, 1, 8), 2.0, 0.9, waste=0.1, lag_mean=1.0, lag_max=8)
      >>> frontier([slow, fast]) == [fast]
      True
    """
    scores = _scores(outcomes)
    smallest: dict[_Score, Setting] = {}
    for outcome, score in zip(outcomes, scores, strict=True):
        smallest[score] = min(outcome.setting, smallest.get(score, outcome.setting))
    return [
        outcome
        for outcome, score in zip(outcomes, scores, strict=True)
        if smallest[score] == outcome.setting
        and not any(other.dominates(score) for other in smallest)
    ]


def recommend(outcomes: Sequence[Outcome], rule: Rule) -> Outcome:
    """Return the outcome that the rule chooses; it is on the frontier.

    Ties go to less waste, then to more throughput, then to the smaller setting. If every setting
    wastes more than the rule allows, the choice is among those that waste least.

    Args:
      outcomes: at least one.
    """
    scored = list(zip(_scores(outcomes), outcomes, strict=True))
    least_waste = min(score.waste for score, _ in scored)
    allowed_waste = max(round(rule.max_waste * _WASTE_STEPS), least_waste)
    frugal = [(score, outcome) for score, outcome in scored if score.waste <= allowed_waste]
    fastest = max(_THROUGHPUT_STEPS - score.slowness for score, _ in frugal)
    too_slow = _THROUGHPUT_STEPS - (1 - rule.slack) * fastest
    _, chosen = min(
        ((score, outcome) for score, outcome in frugal if score.slowness <= too_slow),
        key=_preference,
    )
    return chosen


def _preference(scored: tuple[_Score, Outcome]) -> tuple[_Score, Setting]:
    score, outcome = scored
    return score, outcome.setting


def _scores(outcomes: Sequence[Outcome]) -> list[_Score]:
    fastest = max(outcome.groups_per_second for outcome in outcomes) or 1.0
    return [
        _Score(
            lag=round(outcome.lag_mean * _LAG_STEPS),
            waste=round(outcome.waste * _WASTE_STEPS),
            slowness=round((1 - outcome.groups_per_second / fastest) * _THROUGHPUT_STEPS),
        )
        for outcome in outcomes
    ]
