"""A tuning runs real simulations; each agrees with what `simulate` alone says."""

from dataclasses import replace

import pytest

from headrace.pipeline.errors import ConfigError, HeadraceError
from headrace.pipeline.simulate.agent import SCENARIOS
from headrace.pipeline.simulate.run import simulate
from headrace.pipeline.simulate.scenarios import resolve
from headrace.pipeline.simulate.sweep import TuneConfig
from headrace.pipeline.simulate.tune import TuneSettings, default_settings, tune, write_svg

QUICK = TuneConfig(mean_lags=(0, 2), lag_multiples=(4,), loads=(0.5, 1.0), steps=6, workers=1)


def small_balanced(**changes) -> TuneSettings:
    settings = default_settings(SCENARIOS["balanced"]())
    sim = replace(settings.sim, rows=4, batch_groups=2)
    return replace(settings, sim=sim, tune=replace(QUICK, **changes))


def small_agent(**changes) -> TuneSettings:
    settings = default_settings(SCENARIOS["agent"]())
    tokens = replace(settings.sim.tokens, prompt=20, turn=10, observation=5)
    return replace(
        settings,
        sim=replace(settings.sim, tokens=tokens, turns=2, episodes=8, batch_groups=1),
        rollout=replace(settings.rollout, group_size=2, max_tokens=256),
        tune=replace(QUICK, sampler_shares=(0.5, 0.75), **changes),
    )


def ignore(done, planned):
    pass


def test_each_outcome_is_what_simulate_says_with_the_same_flags():
    source, settings = SCENARIOS["balanced"](), small_balanced()
    findings = tune(source, settings, on_progress=ignore)
    assert [tuple(o.setting.__dict__.values())[:3] for o in findings.outcomes] == [
        (2, 0, 0), (2, 2, 8), (4, 2, 8),
    ]  # fmt: skip
    assert findings.steps == 6
    for outcome in findings.outcomes:
        setting = outcome.setting
        alone = replace(
            settings,
            sim=replace(settings.sim, episodes=setting.episodes),
            schedule=replace(
                settings.schedule, max_mean_lag=setting.max_mean_lag, max_lag=setting.max_lag
            ),
            run=replace(settings.run, steps=6),
        )
        report = simulate(resolve(source, alone))
        assert outcome.groups_per_second == report.groups_per_second
        assert (outcome.efficiency, outcome.waste) == (report.efficiency, report.waste)
        assert (outcome.lag_mean, outcome.lag_max) == (report.lag.mean, report.lag.max)
        assert outcome.lag_mean <= setting.max_mean_lag
        assert outcome.lag_max <= setting.max_lag


def test_workers_change_nothing_and_progress_is_told():
    source, told = SCENARIOS["balanced"](), []

    def note(done, planned):
        told.append((done, planned))

    alone = tune(source, small_balanced(), on_progress=note)
    together = tune(source, small_balanced(workers=2), on_progress=note)
    assert alone == together
    assert told == [(done, 3) for done in range(4)] * 2


def test_rows_are_kept_where_they_would_follow_the_episodes():
    settings = small_balanced()
    bare = replace(settings, sim=replace(settings.sim, rows=None, batch_groups=2, episodes=4))
    findings = tune(SCENARIOS["balanced"](), bare, on_progress=ignore)
    assert findings.kept_flags == "--sim.rows 4 --sim.batch-groups 2"
    assert findings == tune(SCENARIOS["balanced"](), settings, on_progress=ignore)


def test_the_fastest_split_is_used_for_the_schedules():
    planned = set()
    findings = tune(
        SCENARIOS["agent"](), small_agent(), on_progress=lambda _, total: planned.add(total)
    )
    assert planned == {len(findings.outcomes)}
    splits, schedules = findings.outcomes[:2], findings.outcomes[2:]
    assert [(o.setting.sampler_chips, o.setting.learner_chips) for o in splits] == [
        (16, 16), (24, 8),
    ]  # fmt: skip
    best = max(splits, key=lambda outcome: outcome.groups_per_second).setting
    assert {o.setting.sampler_chips for o in schedules} == {best.sampler_chips}
    assert len(schedules) == 3  # with 2, 4 and 6 episodes
    assert findings.kept_flags == ""


@pytest.mark.parametrize(
    ("schedule", "tried"),
    [
        ({"publish_every": 2, "max_mean_lag": 1}, {(2, 8)}),  # eta >= 1
        ({"publish_every": 4, "max_mean_lag": 3}, {(3, 12)}),
        ({"deterministic": True}, {(0, 0), (2, 2)}),  # lockstep has one bound
    ],
)
def test_what_the_rest_of_the_schedule_rules_out_is_not_tried(schedule, tried):
    settings = small_balanced(loads=(1.0,))
    settings = replace(settings, schedule=replace(settings.schedule, max_lag=16, **schedule))
    outcomes = tune(SCENARIOS["balanced"](), settings, on_progress=ignore).outcomes
    assert {(o.setting.max_mean_lag, o.setting.max_lag) for o in outcomes} == tried


def test_a_model_that_fits_on_no_split_is_refused():
    settings = small_agent()
    hardware = replace(settings.sim.hardware, parameters=60e9)  # the learner needs 12 chips
    config = replace(settings.tune, sampler_shares=(0.9,))
    settings = replace(settings, sim=replace(settings.sim, hardware=hardware), tune=config)
    with pytest.raises(ConfigError, match=r"tune\.sampler_shares must leave room"):
        tune(SCENARIOS["agent"](), settings, on_progress=ignore)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_simulation_ends_the_tuning_in_one_message(workers):
    settings = small_balanced(workers=workers)
    settings = replace(settings, sim=replace(settings.sim, failure_probability=1.0))
    with pytest.raises(HeadraceError, match=r"the simulation of Setting\(.* failed: "):
        tune(SCENARIOS["balanced"](), settings, on_progress=ignore)


def test_the_picture_is_written_or_refused_before_anything_runs(tmp_path):
    path = tmp_path / "frontier.svg"
    settings = small_balanced(svg=str(path), mean_lags=(1,), loads=(1.0,))
    write_svg(tune(SCENARIOS["balanced"](), settings, on_progress=ignore), str(path))
    assert path.read_text(encoding="utf-8").startswith("<svg")

    def fail(done, planned):
        raise AssertionError("something ran")

    for folder in ("missing/a.svg", "frontier.svg/a.svg"):
        bad = small_balanced(svg=str(tmp_path / folder))
        with pytest.raises(ConfigError, match=r"tune\.svg must be a file in an existing folder"):
            tune(SCENARIOS["balanced"](), bad, on_progress=fail)
