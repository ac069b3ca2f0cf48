"""The frontier and the choice, against their definitions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.simulate.frontier import Outcome, Rule, Setting, frontier, recommend

NUMBERS = st.sampled_from([0.0, 0.1, 0.15, 0.16, 0.5, 0.95, 1.0])  # few, so that ties happen


@st.composite
def outcome_lists(draw):
    size = draw(st.integers(1, 9))
    return [
        Outcome(
            Setting(index, 2 * index, draw(st.integers(1, 3))),
            groups_per_second=draw(NUMBERS),
            efficiency=draw(NUMBERS),
            waste=draw(NUMBERS),
            lag_mean=draw(NUMBERS),
            lag_max=0,
        )
        for index in range(size)
    ]


def better_everywhere_or_equal(one, other):
    return (
        one.groups_per_second >= other.groups_per_second
        and one.lag_mean <= other.lag_mean
        and one.waste <= other.waste
    )


def same(one, other):
    return better_everywhere_or_equal(one, other) and better_everywhere_or_equal(other, one)


@given(outcome_lists())
def test_nothing_beats_the_frontier_and_something_on_it_beats_all_else(outcomes):
    best = frontier(outcomes)
    for outcome in outcomes:
        beaten_by = [
            other
            for other in outcomes
            if better_everywhere_or_equal(other, outcome) and not same(other, outcome)
        ]
        assert (outcome in best) == (not beaten_by)
        assert any(better_everywhere_or_equal(other, outcome) for other in best)


@given(outcome_lists(), st.randoms(use_true_random=False))
def test_neither_order_nor_units_matter(outcomes, random):
    shuffled = [replace(o, groups_per_second=60 * o.groups_per_second) for o in outcomes]
    random.shuffle(shuffled)
    assert {o.setting for o in frontier(shuffled)} == {o.setting for o in frontier(outcomes)}
    assert recommend(shuffled, Rule()).setting == recommend(outcomes, Rule()).setting


@given(outcome_lists(), NUMBERS, NUMBERS)
def test_the_recommendation_keeps_the_rule_and_has_the_smallest_lag_of_those_that_do(
    outcomes, slack, max_waste
):
    chosen = recommend(outcomes, Rule(slack, max_waste))
    assert chosen in outcomes
    frugal = [o for o in outcomes if o.waste <= max_waste]
    if not frugal:
        assert chosen.waste == min(o.waste for o in outcomes)
        return
    best = max(o.groups_per_second for o in frugal)
    allowed = [o for o in frugal if o.groups_per_second >= (1 - slack) * best]
    assert chosen in allowed
    assert chosen.lag_mean == min(o.lag_mean for o in allowed)


@given(outcome_lists(), NUMBERS, NUMBERS)
def test_the_recommendation_is_on_the_frontier(outcomes, slack, max_waste):
    assert recommend(outcomes, Rule(slack, max_waste)) in frontier(outcomes)


def test_a_choice_worked_out_by_hand():
    rows = [  # (eta, K, throughput, waste, mean lag)
        (1, 4, 30.0, 0.02, 1.0),
        (4, 8, 92.0, 0.28, 3.0),  # too wasteful
        (4, 16, 90.0, 0.11, 3.5),  # within 5 % of 94
        (6, 24, 94.0, 0.10, 5.0),
        (2, 8, 50.0, 0.13, 1.7),
    ]
    outcomes = [Outcome(Setting(r[0], r[1], 128), r[2], 0.5, r[3], r[4], r[1]) for r in rows]
    assert recommend(outcomes, Rule()).setting == Setting(4, 16, 128)
    assert recommend(outcomes, Rule(slack=0.01)).setting == Setting(6, 24, 128)
    assert recommend(outcomes, Rule(max_waste=0.3)).setting == Setting(4, 8, 128)
    assert recommend(outcomes[1:2], Rule()).setting == Setting(4, 8, 128)  # all too wasteful


def test_the_rule_says_what_it_is():
    assert str(Rule()) == (
        "the smallest mean lag within 5% of the best throughput at a waste of at most 15%"
    )


def test_ties_go_to_less_waste_then_to_more_throughput_then_to_fewer_episodes():
    one = Outcome(Setting(2, 8, 256), 1.0, 1.0, 0.1, 1.0, 8)
    for better in (
        replace(one, waste=0.05),
        replace(one, groups_per_second=1.01, setting=Setting(2, 8, 999)),
        replace(one, setting=Setting(2, 8, 128)),
        replace(one, setting=Setting(2, 4, 256)),
    ):
        assert recommend([one, better], Rule()) == better
        assert recommend([better, one], Rule()) == better


def test_no_outcome_no_choice():
    with pytest.raises(ValueError, match="empty"):
        recommend([], Rule())
