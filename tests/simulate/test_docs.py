"""What docs/simulator.md says agrees with the code."""

import re
from pathlib import Path

import pytest
import tyro

from headrace.pipeline.simulate.account import NAMES
from headrace.pipeline.simulate.agent import SCENARIOS
from headrace.pipeline.simulate.hardware import CHIPS
from headrace.pipeline.simulate.scenarios import resolve
from headrace.pipeline.simulate.tune import TuneSettings, default_settings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"headrace (?:simulate|tune) (balanced|agent)(.*)", TEXT.replace("\\\n", ""))
FLAGS = sorted(set(re.findall(r"`(--(?:sim|tune|schedule|run)\.[a-z.-]+[a-z])", TEXT)))


def parse(scenario, flags):
    source = SCENARIOS[scenario]()
    return source, tyro.cli(TuneSettings, default=default_settings(source), args=flags)


@pytest.mark.parametrize(("scenario", "rest"), COMMANDS)
def test_its_commands_are_understood(scenario, rest):
    flags = [flag for flag in rest.split("#")[0].split() if flag not in ("--json", "--help")]
    source, settings = parse(scenario, flags)
    assert resolve(source, settings).name == scenario


def test_its_flags_exist(capsys):
    with pytest.raises(SystemExit):
        parse("agent", ["--help"])
    shown = capsys.readouterr().out
    assert FLAGS
    assert not [flag for flag in FLAGS if flag not in shown]


def test_its_table_of_chips_has_the_numbers_of_the_code():
    rows = dict(re.findall(r"\| `([a-z0-9-]+)` \| ([0-9.| ]+) \|", TEXT))
    assert rows == {
        name: " | ".join(
            (
                f"{chip.flops_per_second / 1e12:g}",
                f"{chip.memory_bytes / 1e9:.3g}",
                f"{chip.memory_bytes_per_second / 1e9:g}",
                f"{chip.interconnect_bytes_per_second / 1e9:g}",
            )
        )
        for name, chip in CHIPS.items()
    }


def test_its_table_of_the_account_has_every_part():
    parts = re.findall(r"\| ([a-z]+) \| (?:both|generation|learner) \|", TEXT)
    assert sorted(parts) == sorted(NAMES)
