"""The ledger's rules one by one, and tables of exact lags worked out by hand."""

import pytest

from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.ledger import (
    Abandoned,
    Admitted,
    BatchRequested,
    Cancel,
    Committed,
    Decision,
    Drop,
    Event,
    FormBatch,
    GroupFailed,
    GroupReady,
    Ledger,
    Published,
    Reissue,
    Schedule,
    advance,
    counts,
    may_admit,
    publish_due,
)


def feed(ledger: Ledger, *events: Event) -> tuple[Ledger, list[Decision]]:
    decisions: list[Decision] = []
    for event in events:
        ledger, more = advance(ledger, event)
        decisions += more
    return ledger, decisions


def admit_all(ledger: Ledger) -> Ledger:
    while may_admit(ledger):
        ledger, _ = advance(ledger, Admitted(f"task-{ledger.admitted}"))
    return ledger


def finish_all(ledger: Ledger, *, but: tuple[int, ...] = ()) -> Ledger:
    """All running groups end, sampled wholly under the version of their admission."""
    for group in ledger.running:
        if group.index not in but:
            ledger, _ = advance(ledger, GroupReady(group.index, group.version))
    return ledger


def lags_of_updates(schedule: Schedule, updates: int, *, publish_delay: int = 0) -> list[int]:
    """The lag sums of the batches if sampling is instant and admission always at its limit.

    `publish_delay`: updates that are committed before a publish is acknowledged.
    """
    ledger, sums = Ledger(schedule), []
    for batch in range(updates):
        ledger = finish_all(admit_all(ledger))
        before = counts(ledger).lag_sum
        ledger, _ = feed(ledger, BatchRequested())
        sums.append(counts(ledger).lag_sum - before)
        ledger, _ = feed(ledger, Committed(batch))
        version = ledger.committed - publish_delay
        if version > ledger.published and version % schedule.publish_every == 0:
            ledger, _ = feed(ledger, Published(version))
    return sums


@pytest.mark.parametrize(
    ("max_mean_lag", "expected"),
    [
        # With eta = 0 every batch is sampled under the version that it is applied to. With
        # eta = 1 two batches are admitted under version 0; from then on one batch is ahead.
        (0, [0, 0, 0, 0, 0, 0]),
        (1, [0, 1, 1, 1, 1, 1]),
        (2, [0, 1, 2, 2, 2, 2]),
        (3, [0, 1, 2, 3, 3, 3]),
    ],
)
def test_exact_lags(max_mean_lag: int, expected: list[int]) -> None:
    for size in (1, 3):
        schedule = Schedule(size, max_mean_lag=max_mean_lag, max_lag=max_mean_lag)
        assert lags_of_updates(schedule, 6) == [size * each for each in expected]


def test_exact_lags_when_publishes_come_one_update_late() -> None:
    # eta = 1: two batches under version 0; nothing is admitted at update 1, as p = 0; then
    # p = 1 admits one batch at update 2, where it is used with lag 1, and so on.
    late = lags_of_updates(Schedule(1, max_mean_lag=1), 6, publish_delay=1)
    assert late == [0, 1, 1, 1, 1, 1]
    # eta = 2: three batches under version 0, then one under each version, two updates late.
    late = lags_of_updates(Schedule(1, max_mean_lag=2), 6, publish_delay=1)
    assert late == [0, 1, 2, 2, 2, 2]


def test_exact_lags_with_a_publish_every_other_update() -> None:
    # eta = 1, m = 2: batches 0 and 1 under version 0, 2 and 3 under version 2, ...
    schedule = Schedule(1, max_mean_lag=1, publish_every=2)
    assert lags_of_updates(schedule, 6) == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("max_lag", "cancelled_at"),
    # Group 0, of version 0, hangs. Batch d may hold it while d <= K, so it is cancelled when
    # d becomes K + 1, that is when batch K is formed without it.
    [(1, 1), (2, 2), (3, 3)],
)
def test_a_hanging_group_is_cancelled_exactly_when_it_can_no_longer_be_used(
    max_lag: int, cancelled_at: int
) -> None:
    ledger = Ledger(Schedule(2, max_mean_lag=1, max_lag=max_lag))
    for batch in range(cancelled_at + 1):
        ledger = finish_all(admit_all(ledger), but=(0,))
        ledger, decisions = feed(ledger, BatchRequested())
        assert isinstance(decisions[0], FormBatch)
        expired = [Cancel(0, "over_age"), Reissue("task-0", 1)] if batch == cancelled_at else []
        assert decisions[1:] == expired
        ledger, _ = feed(ledger, Committed(batch), Published(batch + 1))
    assert counts(ledger).dropped == {"over_age": 1}


def test_a_cancellation_in_the_middle_of_a_publish_moves_no_version() -> None:
    ledger = Ledger(Schedule(1, max_mean_lag=1, max_lag=1))
    ledger = finish_all(admit_all(ledger), but=(0,))
    ledger, _ = feed(ledger, BatchRequested(), Committed(0))
    assert publish_due(ledger) == 1  # started, not yet acknowledged
    assert may_admit(ledger) == 0
    ledger, _ = feed(ledger, GroupReady(0, 0))
    ledger, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (0,))]
    assert (ledger.published, ledger.committed, ledger.formed) == (0, 1, 2)
    assert may_admit(ledger) == 0
    ledger, _ = feed(ledger, Published(1))
    assert may_admit(ledger) == 1
    assert counts(ledger).lag_max == 1


def test_ready_groups_are_taken_oldest_version_first_then_by_index() -> None:
    ledger = Ledger(Schedule(2, max_mean_lag=2, max_lag=4))
    ledger = admit_all(ledger)
    ledger, _ = feed(ledger, GroupReady(5, 0), GroupReady(1, 0), BatchRequested(), Committed(0))
    ledger, _ = feed(ledger, GroupReady(2, 1), GroupReady(4, 0), GroupReady(3, 1))
    ledger, _ = feed(ledger, GroupReady(0, 1))
    assert [group.index for group in ledger.ready] == [4, 0, 2, 3]
    _, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (4, 0))]


def test_a_batch_waits_for_the_learner_and_for_enough_groups() -> None:
    ledger = admit_all(Ledger(Schedule(2)))
    ledger, decisions = feed(ledger, BatchRequested(), BatchRequested(), GroupReady(0, 0))
    assert decisions == []
    ledger, decisions = feed(ledger, GroupReady(3, 0))
    assert decisions == [FormBatch(0, (0, 3))]
    ledger, decisions = feed(ledger, GroupReady(1, 0), GroupReady(2, 0))
    assert decisions == []  # asking twice before the answer was asking once
    _, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (1, 2))]


def test_equal_rewards_are_kept_or_dropped_as_configured() -> None:
    kept = admit_all(Ledger(Schedule(1)))
    kept, decisions = feed(kept, GroupReady(0, 0, useful=False))
    assert decisions == []
    assert len(kept.ready) == 1
    dropped = admit_all(Ledger(Schedule(1, equal_rewards="drop")))
    assert may_admit(dropped) == 0
    dropped, decisions = feed(dropped, GroupReady(0, 0, useful=False))
    assert decisions == [Drop(0, "equal_rewards")]
    assert may_admit(dropped) == 1  # the admission is refunded


def test_a_failed_group_is_dropped_with_its_reason_and_refunds_admission() -> None:
    ledger = admit_all(Ledger(Schedule(1)))
    ledger, decisions = feed(ledger, GroupFailed(1, "env_timeout"))
    assert decisions == [Drop(1, "env_timeout")]
    assert counts(ledger).dropped == {"env_timeout": 1}
    assert may_admit(ledger) == 1


def test_a_task_is_reissued_a_bounded_number_of_times() -> None:
    for max_reissues in (0, 1, 2):
        ledger = Ledger(Schedule(1, max_mean_lag=1, max_lag=1, max_reissues=max_reissues))
        attempts = [0]
        ledger, _ = feed(ledger, Admitted("slow"), Admitted("0"))
        slow = 0
        for batch in range(8):
            ledger = finish_all(admit_all(ledger), but=(slow,))
            ledger, decisions = feed(ledger, BatchRequested(), Committed(batch))
            ledger, _ = feed(ledger, Published(batch + 1))
            for decision in decisions:
                if isinstance(decision, Reissue):
                    assert decision.task_id == "slow"
                    attempts.append(decision.attempt)
                    slow = ledger.admitted
                    ledger, _ = feed(ledger, Admitted("slow", decision.attempt))
        assert attempts == list(range(max_reissues + 1))
        assert counts(ledger).reissued == max_reissues


def test_late_events_are_ignored_and_counted() -> None:
    ledger = admit_all(Ledger(Schedule(1)))
    ledger, _ = feed(ledger, GroupReady(0, 0), BatchRequested(), Committed(0), Published(1))
    after, decisions = feed(
        ledger,
        GroupReady(0, 0),  # a duplicate
        GroupFailed(0, "env_error"),
        GroupReady(99, 0),  # never admitted
        Published(1),
        Published(0),
    )
    assert decisions == []
    assert counts(after).ignored == 5
    assert (after.running, after.ready, after.published) == (ledger.running, ledger.ready, 1)


def test_the_end_of_a_run_drops_all_that_is_outstanding_and_closes_admission() -> None:
    ledger = admit_all(Ledger(Schedule(2)))
    ledger, _ = feed(ledger, *(GroupReady(index, 0) for index in range(3)), BatchRequested())
    ledger, decisions = feed(ledger, Abandoned())
    assert decisions == [Cancel(3, "run_ended"), Drop(2, "run_ended")]
    assert may_admit(ledger) == 0
    ledger, decisions = feed(
        ledger, Committed(0), Published(1), GroupReady(3, 0), BatchRequested(), Abandoned()
    )
    assert decisions == []
    final = counts(ledger)
    assert (final.consumed, final.dropped, final.ignored) == (2, {"run_ended": 2}, 1)
    assert may_admit(ledger) == 0


@pytest.mark.parametrize(
    "event",
    [
        Admitted("one too many"),
        Committed(0),  # not formed
        Committed(1),
        Published(1),  # not committed
        GroupReady(0, 1),  # newer than the learner
        GroupReady(0, -1),  # older than its admission
    ],
)
def test_broken_protocol_is_an_error(event: Event) -> None:
    with pytest.raises(ValueError, match=r"admitted|committed|published|version"):
        advance(admit_all(Ledger(Schedule(1))), event)


def test_a_stale_sampler_is_found_out() -> None:
    # It acknowledged version 1, and then sampled with version 0.
    ledger = admit_all(Ledger(Schedule(1, max_mean_lag=0)))
    ledger, _ = feed(ledger, GroupReady(0, 0), BatchRequested(), Committed(0), Published(1))
    ledger = admit_all(ledger)
    with pytest.raises(ValueError, match="reports version 0; it was admitted at version 1"):
        advance(ledger, GroupReady(1, 0))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_groups": 0}, "batch_groups must be >= 1"),
        ({"max_lag": 0}, "max_lag must be >= max_mean_lag = 1"),
        ({"publish_every": 3}, "max_mean_lag must be >= publish_every - 1 = 2"),
        ({"max_reissues": -1}, "max_reissues must be >= 0, got -1"),
        ({"equal_rewards": "ignore"}, "equal_rewards must be 'keep' or 'drop', got 'ignore'"),
    ],
)
def test_an_impossible_schedule_is_a_config_error(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Schedule(**settings)  # type: ignore[arg-type]  # wrong on purpose
