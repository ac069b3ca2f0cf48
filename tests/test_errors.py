"""Impossible settings: every config of a recipe refuses them, with the same form of message."""

import math
import re
from dataclasses import fields, is_dataclass, replace

import pytest

from headrace import ConfigError, StageFailed
from headrace.envs import EnvironmentBroken
from headrace.pipeline.config import Recipe
from headrace.pipeline.errors import check, stage


def settings(config, kind, prefix=""):
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            yield from settings(value, kind, f"{prefix}{item.name}.")
        elif type(value) is kind:
            yield config, f"{prefix}{item.name}"


def message(setting, value):
    flag = re.escape(setting.replace("_", "-"))
    return rf"^{re.escape(setting)} must be .+, got {value}; \w+ --{flag}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("config", "setting"), [pytest.param(*case, id=case[1]) for case in settings(Recipe(), float)]
)
def test_no_setting_is_infinite_or_nan(config, setting, value):
    with pytest.raises((ConfigError, ValueError), match=message(setting, value)):
        replace(config, **{setting.rpartition(".")[2]: value})


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        pytest.param(*case, id=case[1])
        for case in settings(Recipe(), int)
        if case[1] != "env.latency.seed"  # any integer will do
    ],
)
def test_no_size_or_count_is_negative(config, setting):
    with pytest.raises(ConfigError, match=message(setting, -1)):
        replace(config, **{setting.rpartition(".")[2]: -1})


def test_what_is_allowed_passes_and_a_hint_replaces_the_flag():
    check(True, "a.b", 10**400, ">= 0")
    check(True, "a.b", "text", "text")
    with pytest.raises(ConfigError, match=r"^a\.b must be c, got 'd'; do this$"):
        check(False, "a.b", "d", "c", hint="do this")


def test_a_broken_environment_is_its_stages_failure_and_other_base_exceptions_pass():
    expected = r"'groups' failed: EnvironmentBroken: no host"
    with pytest.raises(StageFailed, match=expected), stage("groups"):
        raise EnvironmentBroken("no host")
    with pytest.raises(SystemExit), stage("groups"):
        raise SystemExit


def test_what_passes_a_stage_has_its_name_also_where_several_things_fail_at_once():
    both = BaseExceptionGroup("tasks", [SystemExit(3), OSError("lost")])
    with pytest.raises(BaseExceptionGroup), stage("groups"):
        raise both
    assert both.exceptions[0].__notes__ == ["in stage 'groups'"]
