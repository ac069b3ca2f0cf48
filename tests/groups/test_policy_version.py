"""The arithmetic, by tables worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.groups.policy_version import (
    admissible,
    check_schedule,
    lag,
    lockstep_admissible,
    lockstep_version,
    next_publish,
    over_age,
    publish_target,
)


@pytest.mark.parametrize(
    ("outstanding", "published", "formed", "max_mean_lag", "expected"),
    [
        (0, 0, 0, 0, 4),  # exact on-policy: one batch under version 0 ...
        (4, 0, 0, 0, 0),
        (0, 0, 1, 0, 0),  # ... none while it is trained, although nothing is outstanding ...
        (0, 1, 1, 0, 4),  # ... and the next one after the publish
        (0, 0, 0, 1, 8),
        (4, 0, 1, 1, 0),  # one formed: of the two batches one is left
        (4, 1, 1, 1, 4),
        (3, 0, 2, 1, 0),  # a late publish closes the gate, it never gives negative room
        (5, 7, 9, 3, 3),
    ],
)
def test_admissible(
    outstanding: int, published: int, formed: int, max_mean_lag: int, expected: int
) -> None:
    room = admissible(outstanding, published, formed, max_mean_lag=max_mean_lag, batch_groups=4)
    assert room == expected


def test_lag_and_over_age_agree_at_the_bound() -> None:
    assert lag(oldest=3, batch=7) == 4
    assert not over_age(3, 7, max_lag=4)
    assert over_age(3, 8, max_lag=4)


@given(st.integers(0, 100), st.integers(1, 10))
def test_publish_target_is_the_largest_committed_multiple(committed: int, every: int) -> None:
    multiples = [version for version in range(committed + 1) if version % every == 0]
    assert publish_target(committed, every) == multiples[-1]


def test_publish_target_once_reached_stays_due_however_late_the_question() -> None:
    assert [publish_target(version, 3) for version in range(8)] == [0, 0, 0, 3, 3, 3, 6, 6]


@pytest.mark.parametrize(
    ("every", "mean", "expected"),
    [
        # The first multiple of m that is not below b - eta, for the batches b = 0, 1, 2, ...
        (1, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (1, 1, [0, 0, 1, 2, 3, 4, 5, 6]),
        (1, 3, [0, 0, 0, 0, 1, 2, 3, 4]),
        (2, 1, [0, 0, 2, 2, 4, 4, 6, 6]),
        (2, 3, [0, 0, 0, 0, 2, 2, 4, 4]),
        (3, 2, [0, 0, 0, 3, 3, 3, 6, 6]),
        (3, 3, [0, 0, 0, 0, 3, 3, 3, 6]),
    ],
)
def test_lockstep_version(every: int, mean: int, expected: list[int]) -> None:
    for size in (1, 3):
        versions = [
            lockstep_version(n, batch_groups=size, max_mean_lag=mean, publish_every=every)
            for n in range(8 * size)
        ]
        assert versions == [version for version in expected for _ in range(size)]


@given(
    batch_groups=st.integers(1, 4),
    mean=st.integers(0, 6),
    every=st.integers(1, 7),
    published=st.integers(0, 40),
)
def test_lockstep_admits_the_groups_whose_version_is_published(
    batch_groups: int, mean: int, every: int, published: int
) -> None:
    every = min(every, mean + 1)
    settings = {"batch_groups": batch_groups, "max_mean_lag": mean, "publish_every": every}
    open_ = [n for n in range(300) if lockstep_version(n, **settings) <= published]
    for admitted in range(0, 300, 7):
        room = len([n for n in open_ if n >= admitted])
        assert lockstep_admissible(admitted, published, **settings) == room
    for n in range(0, 300, 7):
        version, batch = lockstep_version(n, **settings), n // batch_groups
        assert 0 <= batch - version <= mean  # exists in time, and is not too old
        assert version % every == 0


def test_next_publish_is_the_first_multiple_above() -> None:
    assert [next_publish(published, 3) for published in range(7)] == [3, 3, 3, 6, 6, 6, 9]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_groups": 0}, "batch_groups must be >= 1, got 0"),
        ({"publish_every": 0}, "publish_every must be >= 1, got 0"),
        ({"publish_every": 3}, "max_mean_lag must be >= publish_every - 1 = 2, got 1"),
        ({"max_mean_lag": -1}, "max_mean_lag must be >= publish_every - 1 = 0, got -1"),
        ({"max_lag": 0}, "max_lag must be >= max_mean_lag = 1, got 0"),
    ],
)
def test_check_schedule_names_value_range_and_remedy(change: dict[str, int], said: str) -> None:
    good = {"batch_groups": 8, "max_mean_lag": 1, "max_lag": 4, "publish_every": 1}
    assert check_schedule(**good) is None
    error = check_schedule(**(good | change))
    assert error is not None
    assert said in error
    assert "--schedule." in error
