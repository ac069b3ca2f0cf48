"""Random numbers that depend on nothing but their names, and the distributions of durations.

A draw is a pure function of a seed and a stream: neither the order of the draws nor their number
changes one. A distribution's mean is that *after* the cut: what exceeds `cut` times the mean
is clipped to it, and the rest is scaled so that the mean is kept.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal

from ..errors import check

Kind = Literal["constant", "exponential", "lognormal", "pareto"]

_NORMAL = NormalDist()
_MASK = 2**64 - 1
_BISECTIONS = 100


def uniform(seed: int, stream: int) -> float:
    """Return a number of the open interval (0, 1) that the two integers decide.

    Reference: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators (the
      finalizer of SplitMix64).

    Example:
      >>> uniform(7, 0) == uniform(7, 0) != uniform(7, 1)
      True
    """
    mixed = (seed + (stream + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (((mixed ^ (mixed >> 31)) >> 11) + 0.5) / 2**53


@dataclass(frozen=True)
class Tail:
    """The shape of a distribution beyond its mean."""

    sigma: float = 1.0
    """lognormal: the standard deviation of the logarithm, >= 0."""
    alpha: float = 1.5
    """pareto: the tail index, > 1; the smaller, the heavier the tail."""
    cut: float = 60.0
    """No draw exceeds so many times the mean, > 1; the mean itself is kept."""

    def __post_init__(self) -> None:
        check(0 <= self.sigma <= 10, "sim.tail.sigma", self.sigma, "in 0..10")
        check(self.alpha > 1, "sim.tail.alpha", self.alpha, "> 1, as the mean needs, and finite")
        check(self.cut > 1, "sim.tail.cut", self.cut, "> 1 and finite")

    @cached_property
    def half_variance(self) -> float:
        """lognormal: what keeps the mean at 1."""
        return self.sigma**2 / 2


@dataclass(frozen=True)
class Distribution:
    """A distribution of durations with a mean, cut off at `tail.cut` times the mean.

    Example:
      >>> heavy = Distribution("pareto", mean=2.0)
      >>> draws = [heavy.draw(uniform(seed, 0)) for seed in range(20_000)]
      >>> max(draws) <= 120, round(sum(draws) / len(draws), 1)
      (True, 2.0)
    """

    kind: Kind
    mean: float
    tail: Tail = Tail()

    def draw(self, share: float) -> float:
        """Return the duration below which a share of all durations lies: the quantile."""
        return min(self._factor * self._quantile(share), self._longest)

    def _quantile(self, share: float) -> float:
        """Of the distribution with mean 1 and no cut."""
        tail = self.tail
        if self.kind == "lognormal":
            return math.exp(tail.sigma * _NORMAL.inv_cdf(share) - tail.half_variance)
        if self.kind == "exponential":
            return -math.log1p(-share)
        if self.kind == "pareto":
            return (1 - 1 / tail.alpha) * math.pow(1 - share, -1 / tail.alpha)
        return 1.0

    @cached_property
    def _factor(self) -> float:
        """The mean, scaled so that it is the mean after the cut; found by bisection."""
        return self.mean * _solve(self._mean_below)

    @cached_property
    def _longest(self) -> float:
        return self.tail.cut * self.mean

    def _mean_below(self, scale: float) -> float:
        """The mean of `min(scale * X, cut)` for an X of mean 1."""
        cut, tail = self.tail.cut, self.tail
        if self.kind == "exponential":
            return scale * -math.expm1(-cut / scale)
        if self.kind == "lognormal" and tail.sigma > 0:
            place = (math.log(cut / scale) + tail.half_variance) / tail.sigma
            below = scale * _NORMAL.cdf(place - tail.sigma)
            return below + cut * _NORMAL.cdf(-place)
        if self.kind == "pareto":
            lowest = scale * (1 - 1 / tail.alpha)
            if lowest >= cut:
                return cut
            excess = lowest * math.pow(lowest / cut, tail.alpha - 1) / (tail.alpha - 1)
            return scale - excess
        return scale


def _solve(mean_below: Callable[[float], float]) -> float:
    """The scale at which the mean is 1; the mean grows with the scale."""
    low, high = 1.0, 1.0
    while mean_below(high) < 1:
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_below(middle) < 1 else (low, middle)
    return high
