"""A tuning tries what it says, once each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.simulate.frontier import Outcome, Setting
from headrace.pipeline.simulate.sweep import TuneConfig, next_round, schedules, splits

BASE = Setting(64, 1, 4, sampler_chips=24, learner_chips=8)


def all_schedules(config, base=BASE, *, group_size=1, batch_groups=16):
    return schedules(config, base, group_size=group_size, batch_groups=batch_groups)


def test_the_default_sweep_tries_every_eta_k_and_load_that_differ():
    found = all_schedules(TuneConfig())
    loads = {eta: {s.episodes for s in found if s.max_mean_lag == eta} for eta in (0, 1, 2, 4, 6)}
    # At most (eta + 1) batches of 16 are in flight; loads are 32, 64 and 128 episodes.
    assert loads == {0: {16}, 1: {32}, 2: {32, 48}, 4: {32, 64, 80}, 6: {32, 64, 112}}
    assert len(found) == len(set(found)) == 25
    assert {(s.sampler_chips, s.learner_chips) for s in found} == {(24, 8)}
    assert all(s.max_lag in (m * s.max_mean_lag for m in (2, 4)) for s in found)


def test_the_length_of_a_simulation_follows_the_run_within_bounds():
    config = TuneConfig()
    assert [config.steps_for(steps) for steps in (1, 60, 300)] == [40, 60, 100]
    assert TuneConfig(steps=7).steps_for(300) == 7
    assert config.processes >= 1
    assert TuneConfig(workers=3).processes == 3


def run_all_rounds(settings, simulate):
    """Return the outcomes after the last round, and how many were made in each."""
    outcomes, rounds = {}, []
    while new := next_round(settings, outcomes):
        assert not set(new) & set(outcomes)
        outcomes |= {setting: simulate(setting) for setting in new}
        rounds.append(len(new))
    return outcomes, rounds


@given(
    st.dictionaries(st.tuples(st.integers(1, 2), st.integers(0, 2)), st.integers(0, 9)),
    st.sets(st.integers(2, 9), min_size=1),
)
def test_what_is_not_tried_is_the_same_run_as_something_tried(longest_lags, max_lags):
    """Simulations whose lags, if nothing bounds them, reach a number that depends on the rest."""

    def simulate(setting):
        free = longest_lags.get((setting.episodes, setting.max_mean_lag), 5)
        lost = 0.1 * (free > setting.max_lag)
        return Outcome(setting, 1.0, 0.5, lost, 1.0, min(free, setting.max_lag))

    settings = [
        Setting(load, eta, most) for load in (1, 2) for eta in (0, 1, 2) for most in max_lags
    ]
    outcomes, rounds = run_all_rounds(settings, simulate)
    assert len(rounds) <= len(max_lags)
    for setting in settings:
        everything = replace(simulate(setting), setting=None)
        tried = [replace(outcomes[s], setting=None) for s in outcomes if s <= setting]
        assert everything in tried


def test_rounds_go_from_small_to_large_bounds_and_end_where_a_bound_has_no_effect():
    settings = [Setting(64, 4, most) for most in (16, 8, 32)]
    outcomes, rounds = run_all_rounds(
        settings, lambda s: Outcome(s, 1.0, 0.5, 0.1 * (s.max_lag < 16), 1.0, min(s.max_lag, 11))
    )
    assert rounds == [1, 1]
    assert [setting.max_lag for setting in outcomes] == [8, 16]


def test_no_setting_has_fewer_episodes_than_a_group_needs():
    found = all_schedules(TuneConfig(), group_size=64)
    assert {s.episodes for s in found} == {64, 128}


@given(
    shares=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5).map(tuple),
    total=st.integers(2, 300),
    unit=st.integers(1, 16),
)
def test_splits_use_all_chips_and_whole_replicas(shares, total, unit):
    base = Setting(64, 1, 4, sampler_chips=total - 1, learner_chips=1)
    for setting in splits(TuneConfig(sampler_shares=shares), base, unit=unit):
        assert setting.sampler_chips + setting.learner_chips == total
        assert setting.sampler_chips % unit == 0
        assert setting.sampler_chips >= 1
        assert setting.learner_chips >= 1
        assert (setting.max_mean_lag, setting.max_lag) == (8, 32)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean_lags": ()}, {"mean_lags": (1, -1)}, {"lag_multiples": (0,)}, {"loads": (0.0,)},
        {"sampler_shares": (0.5, 1.0)}, {"steps": 0}, {"workers": 0}, {"slack": 1.5},
        {"max_waste": float("nan")},
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"tune.{next(iter(wrong))}"):
        TuneConfig(**wrong)
