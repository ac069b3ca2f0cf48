"""Law 20 in simulations: whatever is set has an effect, or is refused with what to do."""

from dataclasses import fields, is_dataclass, replace

import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.simulate.agent import agent
from headrace.pipeline.simulate.scenarios import balanced, resolve
from headrace.pipeline.simulate.unused import changed_settings
from tests.simulate.settings import recipe

SOURCES = {"balanced": balanced, "agent": agent, "recipe": recipe}


def with_settings(settings, changes):
    """Set values by dotted names."""
    for name, value in changes.items():
        settings = _set(settings, name.split("."), value)
    return settings


def _set(settings, path, value):
    first, *rest = path
    return replace(
        settings, **{first: _set(getattr(settings, first), rest, value) if rest else value}
    )


CHIP = {"sim.hardware.chip": "v5p"}
TRACE = {"sim.trace": "any.jsonl"}

CASES = [
    ("recipe", {}, {"sim.hardware.layers": 9}, "without a chip; set --sim.hardware.chip"),
    ("recipe", {}, {"sim.hardware.efficiency.memory": 0.9}, "without a chip"),
    ("agent", {"sim.hardware.chip": None}, {"sim.hardware.kv_heads": 3}, "without a chip"),
    ("recipe", CHIP, {"sim.speeds.sampler.row_seconds": 1.0}, "with sim.hardware.chip"),
    ("agent", {}, {"sim.speeds.learner.token_seconds": 1.0}, "with sim.hardware.chip"),
    ("recipe", TRACE, {"sim.turns": 2}, "with sim.trace"),
    ("recipe", TRACE, {"sim.latency": "pareto"}, "with sim.trace"),
    ("agent", TRACE, {"sim.latency_mean_seconds": 2.0}, "with sim.trace"),
    ("agent", TRACE, {"sim.tail.alpha": 2.0}, "with sim.trace"),
    ("recipe", TRACE, {"sim.tokens.turn": 3}, "with sim.trace"),
    ("recipe", {}, {"sim.latency_mean_seconds": 2.0}, "env.latency; set --sim.latency"),
    ("recipe", {}, {"sim.tail.sigma": 2.0}, "env.latency; set --sim.latency"),
    ("balanced", {"sim.latency": "lognormal"}, {"sim.tail.alpha": 2.0}, "is lognormal"),
    ("balanced", {"sim.latency": "pareto"}, {"sim.tail.sigma": 2.0}, "is pareto"),
    ("balanced", {"sim.latency": "constant"}, {"sim.tail.cut": 9.0}, "is constant"),
    ("balanced", {"sim.batch_groups": 8}, {"schedule.batch_groups": 9}, "set only one"),
    ("recipe", {"sim.episodes": 8}, {"rollout.max_episodes": 9}, "set only one"),
    ("balanced", {"sim.rows": 8}, {"rollout.max_episodes": 9}, "set --sim.episodes"),
    ("balanced", {}, {"sim.speeds.sampler.kv_tokens": 9}, "in balanced"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "others", "unused", "why"), CASES)
def test_what_has_no_effect_is_refused_by_name(name, others, unused, why):
    source = SOURCES[name]()
    settings = with_settings(source.settings, others | unused)
    (setting,) = unused
    with pytest.raises(ConfigError, match=f"{setting} has no effect .*{why}"):
        resolve(source, settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("balanced", {}), ("agent", {}), ("recipe", {}),
        ("recipe", CHIP | {"sim.hardware.layers": 9}),
        ("recipe", {"sim.speeds.sampler.row_seconds": 1.0, "sim.tokens.coarsening": 2}),
        ("recipe", {"sim.latency": "pareto", "sim.tail.alpha": 2.0}),
        ("recipe", {"sim.latency": "constant", "sim.latency_mean_seconds": 2.0}),
        ("balanced", {"sim.latency": "exponential", "sim.tail.cut": 9.0}),
        ("balanced", {"rollout.max_episodes": 9}),
    ],
)  # fmt: skip
def test_what_has_an_effect_is_taken(name, settings):
    source = SOURCES[name]()
    resolve(source, with_settings(source.settings, settings))


def leaves(settings, section=""):
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{section}{field.name}.")
        else:
            yield f"{section}{field.name}"


def test_every_setting_that_differs_is_found():
    settings = balanced().settings
    assert list(changed_settings(settings, settings)) == []
    other = with_settings(settings, {"sim.tail.cut": 7.0, "run.seed": 3, "sim.rows": 1})
    assert sorted(changed_settings(other, settings)) == ["run.seed", "sim.rows", "sim.tail.cut"]
    assert "sim.speeds.sampler.rows" not in set(leaves(settings))
