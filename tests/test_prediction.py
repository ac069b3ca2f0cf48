"""What a run says of itself at its start."""

import pytest
import trio

from headrace.pipeline.groups.schedule import Schedule
from headrace.pipeline.prediction import describe_bounds, is_quick, predict
from headrace.pipeline.recipes import load_recipe
from headrace.pipeline.rollout.config import RolloutConfig


def test_the_bounds_are_those_of_the_schedule():
    assert "on-policy" in describe_bounds(Schedule(max_mean_lag=0))
    assert "at most 4 for each group" in describe_bounds(Schedule(max_mean_lag=1, max_lag=4))
    lockstep = describe_bounds(Schedule(max_mean_lag=2, max_lag=9, deterministic=True))
    assert "at most 2, reproducible" in lockstep
    assert "token" in describe_bounds(Schedule(over_age="mask"))


def test_the_recipes_are_small_enough_for_a_prediction_and_a_large_run_is_not():
    recipe = load_recipe("calculator")
    assert is_quick(recipe.schedule, recipe.rollout)
    assert not is_quick(Schedule(batch_groups=512), RolloutConfig(max_turns=50))


@pytest.mark.slow
def test_a_prediction_is_one_line_and_a_failed_one_is_no_error(tmp_path):
    small = tmp_path / "small.toml"
    small.write_text("[rollout]\ngroup_size = 2\n[schedule]\nbatch_groups = 2\n", encoding="utf-8")

    async def main():
        return await predict(small, 3), await predict(tmp_path / "missing.toml", 3)

    good, bad = trio.run(main)
    assert "predicts an efficiency of 0." in good
    assert "\n" not in good
    assert "no prediction" in bad
