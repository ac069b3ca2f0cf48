"""A tuning tries what it says, once each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.simulate.frontier import Setting
from headrace.pipeline.simulate.sweep import TuneConfig, schedules, splits

BASE = Setting(64, 1, 4, sampler_chips=24, learner_chips=8)


def all_schedules(config, base=BASE, *, group_size=1, batch_groups=16):
    return schedules(config, base, group_size=group_size, batch_groups=batch_groups)


def test_the_default_sweep_tries_every_eta_k_and_load_that_differ():
    found = all_schedules(TuneConfig())
    loads = {eta: {s.episodes for s in found if s.max_mean_lag == eta} for eta in (0, 1, 2, 4, 6)}
    # At most (eta + 1) batches of 16 are in flight: 16, 32, 48, 80, 112, 144 episodes.
    assert loads == {0: {32}, 1: {32}, 2: {32, 64}, 4: {32, 64, 128}, 6: {32, 64, 128}}
    assert len(found) == len(set(found)) == 25
    assert {(s.sampler_chips, s.learner_chips) for s in found} == {(24, 8)}
    assert all(s.max_lag in (m * s.max_mean_lag for m in (2, 4)) for s in found)


def test_the_length_of_a_simulation_follows_the_run_within_bounds():
    config = TuneConfig()
    assert [config.steps_for(steps) for steps in (1, 60, 300)] == [40, 60, 100]
    assert TuneConfig(steps=7).steps_for(300) == 7
    assert config.processes >= 1
    assert TuneConfig(workers=3).processes == 3


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
