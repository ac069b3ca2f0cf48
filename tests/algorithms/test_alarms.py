"""Each alarm is raised by its number and by nothing else."""

import math
import re
from functools import partial

import pytest

from headrace.pipeline.algorithms.alarms import alarms

FINE = {
    "importance_ess": 0.98,
    "update_norm": 0.1,
    "moved_share": 1.0,
    "members": 8,
    "flat_share": 0.2,
}


COMPARED = partial(alarms, compares_members=True)


@pytest.mark.parametrize("compares", [False, True])
def test_a_good_update_and_an_empty_record_raise_none(compares):
    assert alarms(FINE, compares_members=compares) == alarms({}, compares_members=compares) == {}


@pytest.mark.parametrize(
    ("name", "numbers", "text"),
    [
        ("ess", {"importance_ess": 0.1}, "fallen to 10% .*--schedule.max-mean-lag"),
        ("unmoved", {"moved_share": 0.0}, "bfloat16.*--learner.learning-rate"),
        ("nan", {"skipped": 1.0, "grad_norm": math.nan}, "not finite.*--learner.learning-rate"),
        ("nan", {"skipped": 1.0, "grad_norm": math.inf}, "not finite"),
        ("lone", {"members": 1, "flat_share": 1.0}, "single member.*--rollout.group-size"),
        ("lone", {"members": 1, "flat_share": None}, "single member"),  # a k1 reward comes later
        ("flat", {"flat_share": 0.75}, "75% .*--schedule.equal-rewards drop"),
    ],
)
def test_an_alarm_says_what_is_wrong_and_what_to_do(name, numbers, text):
    given = {name: value for name, value in (FINE | numbers).items() if value is not None}
    found = COMPARED(given)
    assert found.keys() == {name}
    assert re.search(text, found[name])


def test_an_update_that_was_skipped_is_no_alarm():
    assert COMPARED(FINE | {"update_norm": 0.0, "moved_share": 0.0}) == {}


def test_what_moves_without_a_gradient_is_not_below_a_types_resolution():
    numbers = {"grad_norm": 0.0, "update_norm": 1e-9, "moved_share": 0.002, "flat_share": 1.0}
    assert COMPARED(FINE | numbers).keys() == {"flat"}


def test_with_a_teacher_groups_without_a_difference_are_no_alarm():
    assert COMPARED(FINE | {"members": 1, "flat_share": 1.0, "teacher_kl": 0.3}) == {}


def test_a_single_member_is_no_alarm_where_members_are_not_compared():
    alone = FINE | {"members": 1}
    assert alarms(alone, compares_members=False) == {}
    assert alarms(alone | {"flat_share": 1.0}, compares_members=False).keys() == {"flat"}
    assert COMPARED(alone) == {}  # its turns were compared with each other
