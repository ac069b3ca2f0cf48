"""The controller's benchmark measures what it says, on a few turns."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("controller")


def test_the_command_reports_every_case_beside_its_floor(benchmark, monkeypatch, tmp_path, capsys):
    file = tmp_path / "report.json"
    arguments = ["--in-flight", "8", "--rounds", "1", "--least-turns", "40", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["controller.py", *arguments])
    monkeypatch.setattr(benchmark, "collect_rarely", lambda: None)  # for this process's sake
    benchmark.main()
    results = json.loads(file.read_text())["results"]
    assert [result["turns_per_episode"] for result in results] == [1, 10]
    for result in results:
        ours, floor = result["microseconds_per_turn"], result["floor_microseconds_per_turn"]
        assert result["in_flight"] == 8
        assert result["ratio"] == pytest.approx(ours / floor)
        assert min(ours, floor) > 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(results)


def test_a_run_has_the_episodes_in_flight_and_the_turns_that_were_asked_for(benchmark):
    simulation = benchmark.make_simulation(turns=10, in_flight=16, least_turns=1000)
    report = benchmark.simulate(simulation)
    assert report.in_flight_max == 16
    assert report.turns >= 1000
    assert 9 * report.episodes < report.turns <= 10 * report.episodes
