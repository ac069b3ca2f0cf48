"""What limits a run: what bounds the ideal if it is near, else the largest loss."""

from dataclasses import replace

import pytest

from headrace.pipeline.simulate.account import Ideal, Pools
from headrace.pipeline.simulate.bottleneck import describe_bottleneck
from headrace.pipeline.simulate.run import simulate
from tests.simulate.settings import balanced_simulation, recipe_simulation

BUSY = Pools({"useful": 0.5, "capped": 0.5}, {"useful": 0.92, "starved": 0.08}, 0.5)
SLOW = Ideal(0, 0, 50, 0)


def describe(simulation, pools=BUSY, ideal=SLOW, in_flight_max=128):
    return describe_bottleneck(
        pools, ideal, simulation, seconds=100.0, in_flight_max=in_flight_max
    )


@pytest.mark.parametrize(
    ("ideal", "beginning", "remedy"),
    [
        (Ideal(95, 1, 2, 3), "the sampler: its turns need 95%", "more of the devices"),
        (Ideal(1, 95, 2, 3), "the environments: with 128 episodes", "raise --sim.episodes (now"),
        (Ideal(1, 2, 95, 3), "the learner: its updates need 95%", "more of the devices"),
        (Ideal(1, 2, 3, 95), "the longest episode: it alone needs", "cut long episodes short"),
    ],
)
def test_near_the_ideal_it_is_what_bounds_the_ideal(ideal, beginning, remedy):
    said = describe(balanced_simulation(), ideal=ideal)
    assert said.startswith(beginning)
    assert remedy in said


@pytest.mark.parametrize(
    ("generation", "learner", "words"),
    [
        ({"capped": 0.4, "dropped": 0.1}, {"useful": 0.5, "starved": 0.5}, "--schedule.max-mean"),
        ({"capped": 0.1, "dropped": 0.3}, {"useful": 0.6, "starved": 0.4}, "--schedule.max-lag"),
        ({"memory": 0.4}, {"useful": 0.5, "starved": 0.5}, "lower --rollout.max-episodes"),
        ({"recompute": 0.4}, {"useful": 0.5, "starved": 0.5}, "lower --rollout.max-episodes"),
        ({"sync": 0.4}, {"useful": 0.5, "sync": 0.4}, "--schedule.publish-every"),
        ({"evaluation": 0.4}, {"useful": 0.5, "starved": 0.5}, "--evaluate.every"),
        ({"capped": 0.1}, {"useful": 0.3, "starved": 0.7}, "give generation more of the devices"),
        ({"capped": 0.6}, {"useful": 0.6, "padding": 0.4}, "--learner.row-tokens"),
    ],
)
def test_else_it_is_the_largest_loss(generation, learner, words):
    assert words in describe(recipe_simulation(), Pools(generation, learner, 0.5))


def test_more_episodes_are_only_asked_for_where_they_may_come():
    simulation = recipe_simulation()
    pools = Pools({"waiting": 0.5}, {"useful": 0.5, "starved": 0.5}, 0.5)
    assert simulation.controller.concurrency == "auto"
    full = describe(simulation, pools, in_flight_max=simulation.rollout.max_episodes)
    assert "raise --rollout.max-episodes (now 48)" in full
    held = describe(simulation, pools, in_flight_max=20)
    assert "more than 20 episodes at once need --controller.concurrency fixed" in held
    assert "raise" not in held
    fixed = replace(simulation, controller=replace(simulation.controller, concurrency="fixed"))
    assert "raise --rollout.max-episodes" in describe(fixed, pools, in_flight_max=20)


def test_idle_slots_are_no_limit_of_a_learner_that_is_busy():
    report = simulate(balanced_simulation(rows=8, batch_groups=2, episodes=64, run={"steps": 60}))
    assert report.ideal.bound[0] == "learner"
    assert report.efficiency > 0.9
    assert report.bottleneck.startswith("the learner")
