"""What a tuning shows agrees with its outcomes."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.console import Console

from headrace.pipeline.simulate.frontier import Outcome, Rule, Setting
from headrace.pipeline.simulate.tune_report import (
    Findings,
    as_picture,
    as_record,
    as_svg,
    as_table,
    as_words,
    flags,
)

SLOW = Outcome(Setting(128, 0, 0), 1.0, 0.04, 0.0, 0.0, 0, "the barrier")
GOOD = Outcome(Setting(128, 4, 16), 24.0, 0.9, 0.11, 3.5, 16, "environments")
FAST = Outcome(Setting(128, 8, 32), 25.0, 0.99, 0.02, 6.0, 32, "the learner")
BEATEN = Outcome(Setting(128, 8, 8), 24.0, 0.9, 0.32, 6.3, 8)
FINDINGS = Findings("balanced", (FAST, BEATEN, GOOD, SLOW), Rule(), steps=200)


def table_lines(findings, width=100):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(as_table(findings))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table_is_ordered_by_lag_and_marks_the_frontier_and_the_choice():
    header, *rows = table_lines(FINDINGS)
    assert header.split()[:3] == ["η", "K", "episodes"]
    assert rows[0].split() == ["●", "0", "0", "128", "1.00", "4%", "0.04", "0.00", "0", "0.0%"]
    assert rows[1].split()[0] == "◆"
    assert rows[2].split()[:3] == ["●", "8", "32"]
    assert rows[3].split()[:2] == ["8", "8"]  # not on the frontier: no mark


def test_chips_are_shown_where_there_are_any():
    split = [replace(o, setting=replace(o.setting, sampler_chips=192, learner_chips=64))
             for o in FINDINGS.outcomes]  # fmt: skip
    findings = replace(FINDINGS, outcomes=split)
    assert any("192+64" in line for line in table_lines(findings))
    assert not any("chips" in line for line in table_lines(FINDINGS))
    header, *rows = table_lines(findings, width=80)
    assert header.split()[-1] == "waste"
    assert not any("…" in line for line in rows)
    assert "--sim.hardware.sampler-chips 192 --sim.hardware.learner-chips 64" in as_words(findings)
    assert "192+64 chips" in as_svg(findings)


def test_the_words_recommend_what_the_rule_chooses_and_say_the_rule():
    assert as_words(FINDINGS) == (
        "Recommended: the smallest mean lag within 5% of the best throughput at a waste of at "
        "most 15%:\n"
        "  --schedule.max-mean-lag 4 --schedule.max-lag 16 --sim.episodes 128\n"
        "In simulation: 96% of the best throughput, efficiency 0.90, mean lag 3.50, "
        "waste 11.0%.\n"
        "What bounds it: environments."
    )


def test_the_words_say_when_every_setting_wastes_too_much():
    findings = replace(FINDINGS, outcomes=(BEATEN,))
    assert "No setting wastes at most 15%. This one wastes least:" in as_words(findings)
    assert "smallest mean lag" not in as_words(findings)


def test_the_record_is_json_and_has_every_setting_once():
    record = json.loads(json.dumps(as_record(FINDINGS)))
    assert record["simulations"] == len(record["settings"]) == 4
    assert record["recommended"]["max_mean_lag"] == 4
    assert record["flags"] == flags(GOOD.setting)
    assert [row["pareto"] for row in record["settings"]] == [True, True, True, False]
    assert set(record["settings"][0]) == {
        "max_mean_lag", "max_lag", "episodes", "sampler_chips", "learner_chips",
        "groups_per_second", "efficiency", "waste", "lag_mean", "lag_max", "bottleneck", "pareto",
    }  # fmt: skip


@pytest.mark.parametrize("width", [60, 100])
def test_the_picture_marks_the_choice_and_fits(width):
    lines = as_picture(FINDINGS, width=width, height=14)
    assert all(len(line) <= width for line in lines)
    body = "\n".join(lines[:-2])
    assert body.count("◆") == 1
    assert body.count("●") == 2
    assert body.count("·") == 1


def test_the_svg_tells_every_setting():
    titles = [e.text for e in ET.fromstring(as_svg(FINDINGS)).iter() if e.tag.endswith("title")]
    numbers = "96% of the best throughput, mean lag 3.50, waste 11.0%"
    assert f"Recommended: η 4, K 16, 128 episodes: {numbers}" in titles
    assert sum("η 8, K 32" in text for text in titles) == 1
    assert len(titles) == 4
