"""Whole simulations: the oracle, the account, the bounds, determinism."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.rollout.group import identify
from headrace.pipeline.simulate.run import simulate
from tests.simulate.oracle import Oracle
from tests.simulate.settings import balanced_simulation, recipe_simulation


def run_oracle(simulation):
    """The oracle on the very jobs that the simulation draws."""

    def draw(index):
        member = identify(simulation.seed, index=index, member=0).env_seed
        return simulation.workload.script.latency_seconds(Task("any"), member, 0)

    schedule = simulation.schedule
    return Oracle(
        slots=simulation.rollout.max_episodes,
        batch=schedule.batch_groups,
        eta=schedule.max_mean_lag,
        most=schedule.max_lag,
        steps=simulation.steps,
        draw=draw,
    ).go()


@pytest.mark.parametrize("latency", ["exponential", "lognormal", "pareto"])
@pytest.mark.parametrize(("eta", "most"), [(4, 16), (2, 3), (1, 1), (0, 0)])
def test_the_real_controller_does_what_sixty_plain_lines_do(latency, eta, most):
    simulation = balanced_simulation(
        latency=latency,
        episodes=32,
        schedule={"max_mean_lag": eta, "max_lag": most},
        run={"steps": 30, "seed": 5},
    )
    report, oracle = simulate(simulation), run_oracle(simulation)
    assert report.virtual_seconds == pytest.approx(oracle.seconds)
    assert report.lag.histogram == Counter(oracle.lags)
    assert report.waste == pytest.approx(oracle.waste)
    ideal = replace(report.ideal, critical_path=0.0)  # which the oracle doesn't know
    assert ideal.seconds / report.virtual_seconds == pytest.approx(oracle.efficiency)


@given(
    seed=st.integers(0, 2**32),
    eta=st.integers(0, 3),
    slack=st.integers(0, 4),
    failing=st.sampled_from([0.0, 0.1]),
    rows=st.sampled_from([None, 4, 20]),
    kv_tokens=st.sampled_from([None, 100, 400]),
    group_size=st.integers(1, 5),
)
@settings(max_examples=25)
def test_the_account_closes_and_the_bounds_hold(
    seed, eta, slack, failing, rows, kv_tokens, group_size
):
    rng = random.Random(seed)
    simulation = recipe_simulation(
        schedule={
            "max_mean_lag": eta,
            "max_lag": eta + slack,
            "deterministic": rng.random() < 0.3,
        },
        rollout={"group_size": group_size, "failure": rng.choice(["retry", "drop"])},
        sampler={
            "kv_tokens": kv_tokens,
            "kv_token_seconds": rng.choice([0.0, 1e-5]),
            "publish_seconds": rng.choice([0.0, 0.3]),
            "prefix_reuse": rng.random() < 0.5,
        },
        learner={"update_seconds": rng.choice([0.0, 0.1, 2.0])},
        evaluate={"every": rng.choice([0, 3]), "max_episodes": 2},
        run={"seed": seed, "steps": 8},
        rows=rows,
        failure_probability=failing,
        latency=rng.choice(["recipe", "constant", "pareto"]),
    )
    report = simulate(simulation)
    assert sum(report.account.values()) == pytest.approx(1.0, abs=0.01)
    assert min(report.account.values()) >= -1e-9
    assert 0 < report.efficiency <= 1 + 1e-9
    assert 0 <= report.waste <= 1
    assert report.lag.max <= simulation.schedule.max_lag
    assert report.lag.mean <= simulation.schedule.max_mean_lag
    assert sum(report.lag.histogram.values()) <= 8 * simulation.schedule.batch_groups
    assert report.in_flight_max <= simulation.rollout.max_episodes
