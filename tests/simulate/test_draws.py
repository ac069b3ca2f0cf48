"""Draws: pure functions of their names, with the means that they promise."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.simulate.draws import Distribution, Tail, uniform

KINDS = ["constant", "exponential", "lognormal", "pareto"]


@pytest.mark.parametrize("kind", KINDS)
@given(
    mean=st.floats(0.01, 100),
    sigma=st.floats(0, 3),
    alpha=st.floats(1.01, 5),
    cut=st.floats(1.1, 100),
)
def test_the_mean_is_that_after_the_cut(kind, mean, sigma, alpha, cut):
    distribution = Distribution(kind, mean, Tail(sigma, alpha, cut))
    count = 4000
    quantiles = [distribution.draw((place + 0.5) / count) for place in range(count)]
    assert max(quantiles) <= cut * mean * (1 + 1e-12)
    assert quantiles == sorted(quantiles)
    # The midpoints' error is bounded by one cell of the steepest, last part.
    assert statistics.fmean(quantiles) == pytest.approx(mean, rel=0.02 + cut / count)


def test_uniform_is_uniform_and_streams_are_independent():
    draws = [[uniform(seed, stream) for seed in range(5000)] for stream in (0, 1, 2**21)]
    for stream in draws:
        assert 0 < min(stream) < max(stream) < 1
        assert statistics.fmean(stream) == pytest.approx(0.5, abs=4 / math.sqrt(12 * 5000))
        assert statistics.pstdev(stream) == pytest.approx(1 / math.sqrt(12), rel=0.03)
    assert abs(statistics.correlation(draws[0], draws[1])) < 4 / math.sqrt(5000)
    assert abs(statistics.correlation(draws[0][:-1], draws[0][1:])) < 4 / math.sqrt(5000)


def test_known_quantiles():
    assert Distribution("exponential", 2.0).draw(0.5) == pytest.approx(2 * math.log(2))
    assert Distribution("lognormal", 1.0).draw(0.5) == pytest.approx(math.exp(-0.5), rel=1e-4)
    # A Pareto of tail 1.5 has the lowest value 1/3 and, cut at 60, some 5 % more.
    assert Distribution("pareto", 1.0).draw(1e-9) == pytest.approx(0.35125, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigma": -1.0}, r"sim.tail.sigma must be in 0\.\.10"),
        ({"sigma": 1e9}, r"sim.tail.sigma must be in 0\.\.10"),
        ({"alpha": 1.0}, "sim.tail.alpha must be > 1"),
        ({"cut": 1.0}, "sim.tail.cut must be > 1"),
        ({"cut": math.inf}, "sim.tail.cut must be > 1 and finite"),
    ],
)
def test_impossible_tails_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Tail(**arguments)
