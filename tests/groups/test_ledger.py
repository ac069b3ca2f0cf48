"""The ledger's rules one by one. Exact lags are in `test_lags`, members in `test_members`, the
other schedule in `test_lockstep`.
"""

import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.ledger import (
    Abandoned,
    BatchRequested,
    Cancelled,
    Collect,
    Committed,
    Drop,
    Event,
    FormBatch,
    Ledger,
    MemberFailed,
    MemberRule,
    Published,
    Reissue,
    Restart,
    Resumed,
    Schedule,
    advance,
    counts,
    is_stuck,
    may_admit,
    publish_due,
)
from tests.groups.driving import admit_all, admitted, all_done, done, feed, written_and_read

# Batches -----------------------------------------------------------------------------------


def test_ready_groups_are_taken_oldest_version_first_then_by_index() -> None:
    ledger = admit_all(Ledger(Schedule(2, max_mean_lag=2, max_lag=4)))
    ledger, _ = feed(ledger, done(5), done(1), BatchRequested(), Committed(0))
    ledger, _ = feed(ledger, done(2, 1), done(4), done(3, 1), done(0, 1))
    assert [group.index for group in ledger.ready] == [4, 0, 2, 3]
    _, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (4, 0))]


def test_a_batch_waits_for_the_learner_and_for_enough_groups() -> None:
    ledger = admit_all(Ledger(Schedule(2)))
    ledger, decisions = feed(ledger, BatchRequested(), BatchRequested(), done(0))
    assert decisions == [Collect(0, (0,))]
    ledger, decisions = feed(ledger, done(3))
    assert decisions == [Collect(3, (0,)), FormBatch(0, (0, 3))]
    ledger, decisions = feed(ledger, done(1), done(2))
    assert not ledger.learner_waits  # asking twice before the answer was asking once
    _, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (1, 2))]


def test_a_cancellation_in_the_middle_of_a_publish_moves_no_version() -> None:
    ledger = admit_all(Ledger(Schedule(1, max_mean_lag=1, max_lag=1)))
    ledger, _ = feed(ledger, done(1), BatchRequested(), Committed(0))
    assert publish_due(ledger) == 1  # started, not yet acknowledged
    assert may_admit(ledger) == 0
    ledger, decisions = feed(ledger, done(0), BatchRequested())
    assert decisions == [Collect(0, (0,)), FormBatch(1, (0,))]
    assert (ledger.published, ledger.committed, ledger.formed) == (0, 1, 2)
    assert may_admit(ledger) == 0
    ledger, _ = feed(ledger, Published(1))
    assert may_admit(ledger) == 1
    assert counts(ledger).lag_max == 1


def test_equal_rewards_are_kept_or_dropped_as_configured() -> None:
    rule = MemberRule(size=2)
    equal = [done(0, member=member, reward=0.5) for member in range(2)]
    ledger, decisions = feed(admit_all(Ledger(Schedule(1), rule)), *equal)
    assert decisions == [Collect(0, (0, 1))]
    ledger = admit_all(Ledger(Schedule(1, equal_rewards="drop"), rule))
    dropped, decisions = feed(ledger, *equal)
    assert decisions == [Drop(0, "equal_rewards")]
    assert may_admit(dropped) == 1  # the admission is refunded
    _, decisions = feed(ledger, done(0, reward=0.0), done(0, member=1, reward=0.5))
    assert decisions == [Collect(0, (0, 1))]


def test_equal_rewards_are_those_of_the_survivors() -> None:
    rule = MemberRule(3, "survivors", min_size=2)
    ledger = admit_all(Ledger(Schedule(1, equal_rewards="drop"), rule))
    ledger, decisions = feed(
        ledger, done(0), MemberFailed(0, 1, 0, "env_error"), done(0, member=2)
    )
    assert decisions == [Drop(0, "equal_rewards")]


def test_the_versions_of_a_group_are_those_of_all_its_members() -> None:
    ledger = admit_all(Ledger(Schedule(1, max_mean_lag=3, max_lag=3), MemberRule(size=2)))
    for batch in range(2):
        ledger, _ = feed(
            ledger, done(batch), done(batch, member=1), BatchRequested(), Committed(batch)
        )
    ledger, _ = feed(ledger, done(2, 1, 2), done(2, 0, 1, member=1), done(3, 1), BatchRequested())
    ledger, _ = feed(ledger, Committed(2), done(3, 1, 2, member=1), BatchRequested())
    assert (counts(ledger).lag_sum, counts(ledger).lag_max) == (0 + 1 + (2 - 0) + (3 - 1), 2)


# Drops -------------------------------------------------------------------------------------


def test_a_failed_group_is_dropped_with_its_reason_and_refunds_admission() -> None:
    ledger = admit_all(Ledger(Schedule(1), MemberRule(failure="drop")))
    ledger, decisions = feed(ledger, MemberFailed(1, 0, 0, "env_timeout"))
    assert decisions == [Drop(1, "env_timeout")]
    assert counts(ledger).dropped == {"env_timeout": 1}
    assert may_admit(ledger) == 1


def test_a_task_is_reissued_a_bounded_number_of_times() -> None:
    for max_reissues in (0, 1, 2):
        ledger = Ledger(Schedule(1, max_mean_lag=1, max_lag=1, max_reissues=max_reissues))
        attempts = [0]
        ledger, _ = feed(ledger, admitted("slow", "0"))
        slow = 0
        for batch in range(8):
            ledger = admit_all(ledger)
            ledger, decisions = feed(ledger, *all_done(ledger, but=(slow,)), BatchRequested())
            ledger, _ = feed(ledger, Committed(batch), Published(batch + 1))
            for decision in decisions:
                if isinstance(decision, Reissue):
                    assert decision.task_id == "slow"
                    attempts.append(decision.attempt)
                    slow = ledger.admitted
                    ledger, _ = feed(ledger, admitted("slow", attempt=decision.attempt))
        assert attempts == list(range(max_reissues + 1))
        assert counts(ledger).reissued == max_reissues


def test_a_cancelled_group_is_dropped_and_its_task_given_out_again_if_attempts_are_left() -> None:
    ledger, _ = feed(Ledger(Schedule(2, max_reissues=1)), admitted("a"), admitted("b", attempt=1))
    ledger, decisions = feed(ledger, Cancelled(0))
    assert decisions == [Drop(0, "cancelled"), Reissue("a", 1)]
    ledger, decisions = feed(ledger, Cancelled(1))
    assert decisions == [Drop(1, "cancelled")]
    seen = counts(ledger)
    assert (seen.dropped, seen.reissued, seen.running) == ({"cancelled": 2}, 1, 0)
    ledger, decisions = feed(ledger, Cancelled(1), Cancelled(9))
    assert (decisions, counts(ledger).ignored) == ([], 2)


def test_only_a_running_group_can_be_cancelled() -> None:
    ledger, _ = feed(admit_all(Ledger(Schedule(1))), done(0))
    ledger, decisions = feed(ledger, Cancelled(0))
    assert (decisions, counts(ledger).ready, counts(ledger).ignored) == ([], 1, 1)


# Late and impossible events ----------------------------------------------------------------


def test_late_events_are_ignored_and_counted() -> None:
    ledger = admit_all(Ledger(Schedule(1), MemberRule(2)))
    ledger, _ = feed(ledger, done(0), done(0, member=1), BatchRequested(), Committed(0))
    ledger, _ = feed(ledger, Published(1), done(1), MemberFailed(1, 1, 0, "env_error"))
    late: list[Event] = [
        done(0),  # of a group in a batch
        MemberFailed(0, 1, 0, "env_error"),
        done(99),  # never admitted
        done(1),  # of a member that has ended
        MemberFailed(1, 0, 0, "env_error"),
        done(1, member=1, attempt=0),  # of a try that was over
        MemberFailed(1, 1, 2, "env_error"),  # of a try that was never started
        Published(1),
        Published(0),
    ]
    after, decisions = feed(ledger, *late)
    assert decisions == []
    assert after == ledger._replace(ignored=len(late))


@pytest.mark.parametrize(
    "event",
    [
        admitted("one too many"),
        Committed(0),  # not formed
        Committed(1),
        Published(1),  # not committed
        Resumed(1),  # not committed
        done(0, 1),  # newer than the learner
        done(0, 0, 1),
        done(0, 0, -1),  # in the wrong order
        done(0, -1),  # older than its admission
        done(0, member=1),  # there is one member
        MemberFailed(0, -1, 0, "env_error"),
    ],
)
def test_broken_protocol_is_an_error(event: Event) -> None:
    with pytest.raises(ValueError, match=r"admitted|commit|version|member"):
        advance(admit_all(Ledger(Schedule(1))), event)


def test_a_stale_sampler_is_found_out() -> None:
    # It acknowledged version 1, and then sampled with version 0.
    ledger = admit_all(Ledger(Schedule(1, max_mean_lag=0)))
    ledger, _ = feed(ledger, done(0), BatchRequested(), Committed(0), Published(1))
    ledger = admit_all(ledger)
    with pytest.raises(ValueError, match="reports versions 0 to 0; possible are 1 to 1"):
        advance(ledger, done(1, 0))


# The end and a new start -------------------------------------------------------------------


def test_the_end_of_a_run_drops_all_that_is_outstanding_and_closes_admission() -> None:
    ledger = admit_all(Ledger(Schedule(2)))
    ledger, _ = feed(ledger, *(done(index) for index in range(3)), BatchRequested())
    ledger, decisions = feed(ledger, Abandoned())
    assert decisions == [Drop(3, "run_ended"), Drop(2, "run_ended")]
    assert may_admit(ledger) == 0
    ledger, decisions = feed(
        ledger, Committed(0), Published(1), done(3), BatchRequested(), Abandoned()
    )
    assert decisions == []
    final = counts(ledger)
    assert (final.consumed, final.dropped, final.ignored) == (2, {"run_ended": 2}, 1)
    assert may_admit(ledger) == 0
    assert not is_stuck(ledger)


@pytest.mark.parametrize("deterministic", [False, True])
def test_after_the_end_and_after_a_new_start_nobody_waits_for_a_batch(deterministic: bool) -> None:
    schedule = Schedule(1, deterministic=deterministic)
    ledger, _ = feed(admit_all(Ledger(schedule)), BatchRequested())
    assert ledger.learner_waits
    ended, decisions = feed(ledger, Abandoned())
    assert decisions == [Drop(0, "run_ended"), Drop(1, "run_ended")]
    assert not ended.learner_waits
    ledger, _ = feed(ledger, Resumed(0))
    _, decisions = feed(ledger, done(0), done(1))
    assert decisions == [Collect(0, (0,)), Collect(1, (0,))]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_saved_ledger_goes_on_with_fresh_members(deterministic: bool) -> None:
    schedule = Schedule(1, max_mean_lag=2, deterministic=deterministic)
    ledger = admit_all(Ledger(schedule, MemberRule(2)))  # groups 0, 1, 2 under version 0
    ledger, _ = feed(ledger, done(0), done(0, member=1), BatchRequested(), Committed(0))
    ledger, _ = feed(ledger, done(2), done(2, member=1), done(1), MemberFailed(1, 1, 0, "error"))
    ledger, decisions = feed(written_and_read(ledger), Resumed(1))
    assert decisions == [Restart(1, "task-1", 0)]
    assert [group.index for group in ledger.ready] == [2]
    assert (ledger.published, ledger.learner_waits) == (1, False)
    # Its members are in their first try again, and sampled anew: with the version that is in
    # use now, or with the one of their place.
    version = 0 if deterministic else 1
    ledger, decisions = feed(ledger, *(done(1, version, member=member) for member in range(2)))
    assert decisions == [Collect(1, (0, 1))]
    assert counts(ledger).ignored == 0
    _, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (1,) if deterministic else (2,))]


def test_a_run_resumes_only_between_updates_with_its_last_version() -> None:
    ledger, _ = feed(admit_all(Ledger(Schedule(1))), done(0), BatchRequested())
    with pytest.raises(ValueError, match="got version 0, 1 batches formed and not committed"):
        advance(ledger, Resumed(0))
    ledger, _ = feed(ledger, Committed(0))
    with pytest.raises(ValueError, match="version 1; got version 0"):
        advance(ledger, Resumed(0))
    with pytest.raises(ValueError, match="ended: True"):
        feed(ledger, Abandoned(), Resumed(1))


def test_stuck_is_a_learner_that_waits_for_nothing() -> None:
    ledger, _ = feed(Ledger(Schedule(1, max_mean_lag=0)), BatchRequested())
    assert not is_stuck(ledger)  # a group may be admitted
    ledger, _ = feed(ledger, admitted("a"))
    assert not is_stuck(ledger)  # it runs
    ledger, _ = feed(ledger, done(0), BatchRequested())
    assert not is_stuck(ledger)  # the update will be committed
    ledger, _ = feed(ledger, Committed(0))
    assert not is_stuck(ledger)  # and published
    # No sequence of events leads on to a stuck ledger: this one is made up.
    assert is_stuck(
        ledger._replace(
            committed=0,
            published=0,
            in_batch=(),
            admitted=1,
            consumed=0,
            schedule=Schedule(1, max_mean_lag=0, deterministic=True),
        )
    )


# Settings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_groups": 0}, "batch_groups must be >= 1"),
        ({"max_lag": 0}, "max_lag must be >= max_mean_lag = 1"),
        ({"publish_every": 3}, "max_mean_lag must be >= publish_every - 1 = 2"),
        ({"max_reissues": -1}, "max_reissues must be >= 0, got -1"),
        ({"equal_rewards": "ignore"}, "equal_rewards must be 'keep' or 'drop', got 'ignore'"),
        ({"over_age": "keep"}, "over_age must be 'drop' or 'mask', got 'keep'"),
        (
            {"deterministic": True, "equal_rewards": "drop"},
            "equal_rewards must be 'keep' with schedule.deterministic.*--schedule.no-determ",
        ),
    ],
)
def test_an_impossible_schedule_is_a_config_error(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Schedule(**settings)  # type: ignore[arg-type]  # wrong on purpose
