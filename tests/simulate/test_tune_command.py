"""`headrace tune` from the command line."""

import json

import pytest

from headrace.pipeline.cli import run

QUICK = [
    "--sim.rows", "8", "--sim.batch-groups", "2", "--tune.mean-lags", "0", "2",
    "--tune.loads", "1.0", "--tune.steps", "5", "--tune.workers", "1",
]  # fmt: skip


def test_prints_table_picture_and_recommendation(capsys, tmp_path):
    picture = tmp_path / "frontier.svg"
    assert run(["tune", "balanced", *QUICK, "--tune.svg", str(picture)]) == 0
    shown = capsys.readouterr()
    assert "balanced, tuned in 3 simulations of 5 updates" in shown.out
    assert "mean lag (versions)" in shown.out
    flags = shown.out.split("Recommended: ")[1].splitlines()[1].strip()
    assert flags.startswith("--schedule.max-mean-lag ")
    assert flags.endswith("--sim.episodes 6 --sim.rows 8 --sim.batch-groups 2")
    assert shown.err == "balanced: at most 3 simulations\n"
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    # What it recommends can be given to the simulator as it stands.
    assert run(["simulate", "balanced", *flags.split(), "--run.steps", "5", "--json"]) == 0


def test_json_is_one_object_on_standard_output(capsys):
    assert run(["tune", "balanced", *QUICK, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["recipe"], record["simulations"], record["steps"]) == ("balanced", 3, 5)
    assert record["recommended"] in record["settings"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tune needs a recipe or scenario"),
        (["--json"], "tune needs a recipe or scenario"),
        (["nonsense"], "the built-in ones are balanced, agent"),
        (["balanced", "--tune.loads", "0"], "tune.loads must be all > 0"),
        (["balanced", "--tune.svg", "no/such/folder.svg"], "tune.svg must be a file in an exist"),
        (
            ["balanced", "--sim.hardware.chip", "v5e"],
            "sim.hardware.chip has no effect in balanced",
        ),
    ],
)
def test_mistakes_are_explained(capsys, arguments, message):
    assert run(["tune", *arguments]) == 2
    assert message in capsys.readouterr().err
