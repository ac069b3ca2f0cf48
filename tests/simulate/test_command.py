"""`headrace simulate`: one JSON object or a readable report; mistakes are one message."""

import gc
import json

import pytest

from headrace.pipeline.cli import run

BALANCED = [
    "simulate", "balanced", "--sim.rows", "16", "--sim.batch-groups", "4", "--sim.latency",
    "pareto", "--schedule.max-mean-lag", "4", "--schedule.max-lag", "16", "--run.steps", "20",
]  # fmt: skip
ACCOUNT = {
    "useful", "starved", "capped", "sync", "dropped", "recompute", "padding", "evaluation",
}  # fmt: skip


def test_json_is_one_object_and_nothing_else(capsys):
    assert run([*BALANCED, "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert captured.err == ""
    assert 0 < report["efficiency"] <= 1
    assert 0 <= report["waste"] < 1
    assert set(report["lag"]) == {"mean", "max", "histogram"}
    assert report["lag"]["mean"] <= 4
    assert report["lag"]["max"] <= 16
    assert sum(report["lag"]["histogram"].values()) == 20 * 4
    assert set(report["account"]) >= ACCOUNT
    assert sum(report["account"].values()) == pytest.approx(1.0, abs=0.01)
    assert isinstance(report["bottleneck"], str)
    assert report["virtual_seconds"] >= 5
    assert report["host_microseconds_per_turn"] > 0
    assert report["turns"] == report["episodes"] >= 80
    assert report["in_flight_max"] == 16
    assert len(report["dropped_by_length_decile"]) == 10


def test_the_readable_report_says_it_all(capsys):
    assert run(BALANCED) == 0
    text = capsys.readouterr().out
    for part in ("efficiency", "waste", "lag in versions", "useful", "starved", "What limits it"):
        assert part in text


SCHEDULE = {
    "batch_groups": 32, "max_mean_lag": 4, "max_lag": 16, "publish_every": 1,
    "deterministic": False, "over_age": "drop", "raised_for": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "in_flight", "learner_seconds", "schedule"),
    [
        ([], 128, 4 * 32 / 128, {}),
        (["--schedule.batch-groups", "32", "--sim.rows", "64"], 64, 4 * 32 / 64, {}),
        (["--sim.batch-groups", "8", "--sim.rows", "16"], 16, 4 * 8 / 16, {"batch_groups": 8}),
        (["--sim.episodes", "160"], 160, 4 * 32 / 160, {}),
        (["--sim.rows", "40", "--sim.episodes", "160"], 160, 4 * 32 / 40, {}),
        # Without a number of episodes the bounds are as they are said to be.
        (["--sim.rows", "200"], 160, 4 * 32 / 200, {}),
        (
            ["--sim.episodes", "161"], 161, 4 * 32 / 161,
            {"max_mean_lag": 6, "max_lag": 24, "raised_for": 161},
        ),
        (
            ["--sim.episodes", "161", "--schedule.max-lag", "99"], 160, 4 * 32 / 161,
            {"max_lag": 99},
        ),
        # What is asked for is kept, also where it is the default.
        (["--sim.episodes", "161", "--schedule.max_mean_lag", "4"], 160, 4 * 32 / 161, {}),
    ],
)  # fmt: skip
def test_what_rows_episodes_and_batches_mean_in_balanced(
    arguments, in_flight, learner_seconds, schedule, capsys
):
    assert run(["simulate", "balanced", "--run.steps", "4", "--json", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["in_flight_max"] == in_flight
    assert report["ideal"]["learner"] == pytest.approx(learner_seconds)
    assert report["schedule"] == SCHEDULE | schedule
    assert sum(report["lag"]["histogram"].values()) == 4 * report["schedule"]["batch_groups"]


def test_the_readable_report_says_which_bounds_were_raised(capsys):
    assert run(["simulate", "balanced", "--run.steps", "2"]) == 0
    assert "raised" not in capsys.readouterr().out
    assert run(["simulate", "balanced", "--run.steps", "2", "--sim.episodes", "400"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "at most 13 on average, at most 52 for each" in text
    assert "(raised, so that 400 episodes can be in flight)" in text


def test_a_recipe_for_training_can_be_simulated(capsys):
    arguments = ["simulate", "calculator", "--run.steps", "2", "--rollout.group-size", "4"]
    assert run([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["scenario"] == "calculator"
    assert sum(report["lag"]["histogram"].values()) == 2 * 15
    assert report["account"]["padding"] > 0
    hardware = ["--sim.hardware.chip", "v5p", "--sim.tokens.turn", "4"]
    assert run([*arguments, *hardware, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["virtual_seconds"] != report["virtual_seconds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "simulate needs a recipe"),
        (["--json"], "simulate needs a recipe"),
        (["balancd"], "(did you mean 'balanced'?); the built-in ones are balanced, agent, calc"),
        (["calculatr"], "did you mean 'calculator'"),
        (["no/such.toml"], "no recipe file"),
        (["balanced", "--sim.rowss", "3"], "--sim.rows"),
        (["balanced", "--sim.rows", "0"], "sim.rows must be >= 1"),
        (["balanced", "--sim.latency", "gaussian"], "gaussian"),
        (["balanced", "--sim.latency", "recipe"], "set --sim.latency lognormal"),
        (["balanced", "--sim.turns", "100"], "sim.turns must be <= rollout.max_turns (64)"),
        (["balanced", "--sim.tokens.turn", "9"], "sim.tokens.turn has no effect in balanced"),
        (["balanced", "--sim.hardware.chip", "v4"], "sim.hardware.chip has no effect in balanced"),
        (["balanced", "--sim.trace", "x.jsonl"], "sim.trace has no effect in balanced"),
        (["balanced", "--schedule.max-lag", "1"], "max_lag must be >= max_mean_lag"),
        (["balanced", "--run.steps", "0"], "run.steps must be >= 1"),
        (["balanced", "--model.width", "64"], "--model.width"),
        (["calculator", "--sim.trace", "none.jsonl"], "none.jsonl"),
        (
            ["calculator", "--sim.speeds.sampler.row-seconds", "-1"],
            "set --sim.speeds.sampler.row-seconds",
        ),
        (["calculator", "--sim.speeds.learner.token-seconds", "-1"], "--sim.speeds.learner.token"),
        (["calculator", "--sim.speeds.sampler.rows", "9"], "--sim.speeds.sampler.rows"),
    ],
)
def test_a_mistake_is_one_message(arguments, message, capsys):
    try:
        code = run(["simulate", *arguments])
    except SystemExit as stop:  # the parser's own
        code = stop.code
    captured = capsys.readouterr()
    assert code == 2
    assert "Traceback" not in captured.err
    assert message in captured.err + captured.out


def test_the_callers_garbage_collection_is_left_alone(capsys):
    before = gc.get_threshold(), gc.get_freeze_count()
    assert run(BALANCED) == 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == before


def test_a_simulated_run_that_fails_exits_like_a_run(capsys):
    assert run([*BALANCED, "--sim.failure-probability", "1.0"]) == 1
    assert "the simulated environment broke" in capsys.readouterr().err
