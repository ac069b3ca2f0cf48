"""The frontier and the choice, against their definitions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.simulate.frontier import Outcome, Rule, Setting, frontier, recommend

# Few values, so that ties happen, and all of them whole numbers of the steps that count.
NUMBERS = st.sampled_from([0.0, 0.1, 0.15, 0.2, 0.5, 0.95, 1.0])


@st.composite
def outcome_lists(draw):
    size = draw(st.integers(1, 9))
    outcomes = [
        Outcome(
            Setting(draw(st.integers(1, 3)), index, 2 * index),
            groups_per_second=draw(NUMBERS),
            efficiency=draw(NUMBERS),
            waste=draw(NUMBERS),
            lag_mean=draw(NUMBERS),
            lag_max=0,
        )
        for index in range(size)
    ]
    best = replace(outcomes[0], groups_per_second=1.0)  # so that shares of it are round, too
    return draw(st.permutations([best, *outcomes[1:]]))


def at_least_as_good(one, other):
    return (
        one.groups_per_second >= other.groups_per_second
        and one.lag_mean <= other.lag_mean
        and one.waste <= other.waste
    )


def equal(one, other):
    return at_least_as_good(one, other) and at_least_as_good(other, one)


@given(outcome_lists())
def test_nothing_beats_the_frontier_and_something_on_it_beats_all_else(outcomes):
    best = frontier(outcomes)
    for outcome in outcomes:
        rivals = [other for other in outcomes if at_least_as_good(other, outcome)]
        is_smallest = outcome.setting == min(other.setting for other in rivals)
        assert (outcome in best) == (
            all(equal(other, outcome) for other in rivals) and is_smallest
        )
        assert any(other in best for other in rivals)


@given(outcome_lists(), st.randoms(use_true_random=False))
def test_neither_order_nor_units_matter(outcomes, random):
    shuffled = [replace(o, groups_per_second=64 * o.groups_per_second) for o in outcomes]
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
    allowed = [o for o in frugal if o.groups_per_second >= (1 - slack) * best - 1e-9]
    assert chosen in allowed
    assert chosen.lag_mean == min(o.lag_mean for o in allowed)


@given(
    st.lists(
        st.builds(
            Outcome,
            setting=st.builds(Setting, *[st.integers(0, 2)] * 3),
            groups_per_second=st.floats(0, 1e3),
            efficiency=st.just(0.5),
            waste=st.floats(0, 1),
            lag_mean=st.floats(0, 9),
            lag_max=st.just(9),
        ),
        min_size=1,
        max_size=9,
        unique_by=lambda outcome: outcome.setting,
    ),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_the_recommendation_is_on_the_frontier(outcomes, slack, max_waste):
    assert recommend(outcomes, Rule(slack, max_waste)) in frontier(outcomes)


def test_differences_without_meaning_count_for_nothing():
    one = Outcome(Setting(128, 4, 16), 100.0, 0.9, 0.1, 3.5, 16)
    other = Outcome(Setting(256, 4, 16), 100.1, 0.9, 0.0999, 3.49, 16)
    assert frontier([other, one]) == [one]
    assert recommend([other, one], Rule()) == one
    faster = replace(other, groups_per_second=101.0)
    assert frontier([faster, one]) == [faster]


def test_a_choice_worked_out_by_hand():
    rows = [  # (eta, K, throughput, waste, mean lag)
        (1, 4, 30.0, 0.02, 1.0),
        (4, 8, 92.0, 0.28, 3.0),  # too wasteful
        (4, 16, 90.0, 0.11, 3.5),  # within 5 % of 94
        (6, 24, 94.0, 0.10, 5.0),
        (2, 8, 50.0, 0.13, 1.7),
    ]
    outcomes = [Outcome(Setting(128, r[0], r[1]), r[2], 0.5, r[3], r[4], r[1]) for r in rows]
    assert recommend(outcomes, Rule()).setting == Setting(128, 4, 16)
    assert recommend(outcomes, Rule(slack=0.01)).setting == Setting(128, 6, 24)
    assert recommend(outcomes, Rule(max_waste=0.3)).setting == Setting(128, 4, 8)
    assert recommend(outcomes[1:2], Rule()).setting == Setting(128, 4, 8)  # all too wasteful


def test_the_rule_says_what_it_is():
    assert str(Rule()) == (
        "the smallest mean lag within 5% of the best throughput at a waste of at most 15%"
    )


def test_ties_go_to_less_waste_then_to_more_throughput_then_to_the_smaller_setting():
    one = Outcome(Setting(256, 2, 8), 1.0, 1.0, 0.1, 1.0, 8)
    for better in (
        replace(one, waste=0.05),
        replace(one, groups_per_second=1.01, setting=Setting(999, 2, 8)),
        replace(one, setting=Setting(128, 2, 8)),
        replace(one, setting=Setting(256, 2, 4)),
    ):
        assert recommend([one, better], Rule()) == better
        assert recommend([better, one], Rule()) == better


def test_no_outcome_no_choice():
    with pytest.raises(ValueError, match="empty"):
        recommend([], Rule())
