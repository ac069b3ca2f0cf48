"""Each alarm is raised by its number and by nothing else."""

import math
import re

import pytest

from headrace.pipeline.algorithms.alarms import alarms

FINE = {
    "importance_ess": 0.98,
    "update_norm": 0.1,
    "moved_share": 1.0,
    "members": 8,
    "flat_share": 0.2,
}


def test_a_good_update_and_an_empty_record_raise_none():
    assert alarms(FINE) == alarms({}) == {}


@pytest.mark.parametrize(
    ("name", "numbers", "text"),
    [
        ("ess", {"importance_ess": 0.1}, "fallen to 10% .*--schedule.max-mean-lag"),
        ("unmoved", {"moved_share": 0.0}, "bfloat16.*--learner.learning-rate"),
        ("nan", {"skipped": 1.0, "grad_norm": math.nan}, "not finite.*--learner.learning-rate"),
        ("nan", {"skipped": 1.0, "grad_norm": math.inf}, "not finite"),
        ("lone", {"members": 1, "flat_share": 1.0}, "single member.*--rollout.group-size"),
        ("flat", {"flat_share": 0.75}, "75% .*--schedule.equal-rewards drop"),
    ],
)
def test_an_alarm_says_what_is_wrong_and_what_to_do(name, numbers, text):
    found = alarms(FINE | numbers)
    assert found.keys() == {name}
    assert re.search(text, found[name])


def test_an_update_that_was_skipped_is_no_alarm():
    assert alarms(FINE | {"update_norm": 0.0, "moved_share": 0.0}) == {}


def test_with_a_teacher_groups_without_a_difference_are_no_alarm():
    assert alarms(FINE | {"members": 1, "flat_share": 1.0, "teacher_kl": 0.3}) == {}
