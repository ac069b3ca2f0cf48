"""The rules of the lockstep schedule one by one: each group has its place, version and task."""

import pytest

from headrace.pipeline.groups.ledger import (
    BatchRequested,
    Cancelled,
    Collect,
    Committed,
    Drop,
    FormBatch,
    Ledger,
    MemberFailed,
    MemberRule,
    Published,
    Schedule,
    advance,
    counts,
    may_admit,
    oldest_needed,
    publish_due,
    sampled_version,
)
from tests.groups.driving import admit_all, admitted, all_done, done, feed


def lockstep(size: int = 1, mean: int = 1, *, every: int = 1) -> Schedule:
    return Schedule(size, mean, max(4, mean), publish_every=every, deterministic=True)


def test_lockstep_forms_batches_by_place_whatever_ends_first() -> None:
    ledger = admit_all(Ledger(lockstep(2)))
    assert [sampled_version(ledger, index) for index in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]
    ledger, decisions = feed(ledger, BatchRequested(), done(3), done(2), done(1))
    assert FormBatch not in map(type, decisions)  # group 0 still runs
    ledger, decisions = feed(ledger, done(0))
    assert decisions == [Collect(0, (0,)), FormBatch(0, (0, 1))]
    _, decisions = feed(ledger, BatchRequested())
    assert decisions == [FormBatch(1, (2, 3))]


def test_lockstep_waits_for_groups_that_are_not_admitted_yet() -> None:
    ledger, _ = feed(Ledger(lockstep(2)), admitted("a"), done(0), BatchRequested())
    assert ledger.learner_waits
    ledger, decisions = feed(ledger, admitted("b"), done(1))
    assert decisions[-1] == FormBatch(0, (0, 1))


def test_lockstep_leaves_the_place_of_a_failed_group_empty() -> None:
    ledger = admit_all(Ledger(lockstep(3), MemberRule(failure="drop")))
    failed = MemberFailed(1, 0, 0, "env_error")
    ledger, decisions = feed(ledger, done(2), failed, done(0), BatchRequested())
    assert decisions[-1] == FormBatch(0, (0, 2))
    assert may_admit(ledger) == 0  # its admission is not refunded: other groups keep their places
    seen = counts(ledger)
    assert (seen.in_batch, seen.consumed, seen.dropped) == (2, 0, {"env_error": 1})
    ledger, _ = feed(ledger, Committed(0))
    assert (counts(ledger).in_batch, counts(ledger).consumed) == (0, 2)


def test_lockstep_forms_an_empty_batch_where_all_have_failed() -> None:
    ledger = admit_all(Ledger(lockstep(2), MemberRule(failure="drop")))
    ledger, decisions = feed(
        ledger,
        BatchRequested(),
        MemberFailed(0, 0, 0, "env_error"),
        MemberFailed(1, 0, 0, "env_error"),
    )
    assert decisions[-1] == FormBatch(0, ())
    ledger, _ = feed(ledger, Committed(0), Published(1), done(3), done(2), BatchRequested())
    seen = counts(ledger)
    assert (ledger.committed, seen.consumed, seen.in_batch) == (1, 0, 2)
    assert seen.lag_mean == 1.0  # over the two groups that there were


def test_lockstep_drops_a_cancelled_group_and_moves_no_task() -> None:
    ledger = admit_all(Ledger(lockstep(1)))
    ledger, decisions = feed(ledger, Cancelled(0), BatchRequested())
    assert decisions == [Drop(0, "cancelled"), FormBatch(0, ())]
    assert counts(ledger).reissued == 0


def test_lockstep_finds_out_a_sampler_with_another_version() -> None:
    ledger = admit_all(Ledger(lockstep(1)))
    ledger, _ = feed(ledger, done(0), BatchRequested(), Committed(0), Published(1))
    for oldest, newest in [(1, 1), (0, 1)]:
        with pytest.raises(ValueError, match=f"{oldest} to {newest}; possible are 0 to 0"):
            advance(ledger, done(1, oldest, newest))


def test_lockstep_publishes_every_version_in_order_however_late() -> None:
    ledger = admit_all(Ledger(lockstep(1, mean=5, every=2)))
    ledger, _ = feed(ledger, *all_done(ledger))
    for batch in range(5):
        ledger, _ = feed(ledger, BatchRequested(), Committed(batch))
    assert publish_due(ledger) == 2  # though version 4 is committed
    with pytest.raises(ValueError, match="version 4 published before version 2"):
        advance(ledger, Published(4))
    ledger, _ = feed(ledger, Published(2))
    assert publish_due(ledger) == 4
    ledger, _ = feed(ledger, Published(4))
    assert publish_due(ledger) is None
    ledger, _ = feed(ledger, Published(5))  # as at the end of a run
    assert publish_due(ledger) is None


def test_weights_are_needed_until_the_last_group_that_they_sample_has_ended() -> None:
    ledger = admit_all(Ledger(lockstep(1, mean=2)))  # groups 0, 1, 2 of version 0
    assert oldest_needed(ledger) == 0
    ledger, _ = feed(ledger, done(0), BatchRequested(), Committed(0), Published(1))
    ledger = admit_all(ledger)  # group 3 of version 1
    ledger, _ = feed(ledger, done(2), done(3, 1))
    assert oldest_needed(ledger) == 0  # group 1 still runs
    ledger, _ = feed(ledger, done(1))
    assert oldest_needed(ledger) == 1  # group 4 is the next, and of version 2 that is to come
    bounded, _ = feed(Ledger(Schedule(1)), admitted("a"), done(0), BatchRequested(), Committed(0))
    assert (oldest_needed(bounded), sampled_version(bounded, 0)) == (0, None)
    assert oldest_needed(feed(bounded, Published(1))[0]) == 1
