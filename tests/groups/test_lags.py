"""The exact lags, worked out by hand.

Off by one is the classic fault here, so the tables hold numbers, not formulas. eta is
`max_mean_lag`, K is `max_lag`, m is `publish_every`, B the number of groups of a batch, v the
updates committed, p the version published, d the batches formed. Groups have one member.
"""

import pytest

from headrace.pipeline.groups.ledger import (
    BatchRequested,
    Collect,
    Committed,
    Decision,
    Drop,
    Event,
    FormBatch,
    Ledger,
    MemberFailed,
    Published,
    Reissue,
    Schedule,
    advance,
    counts,
    may_admit,
    publish_due,
)
from tests.groups.driving import admit_all, all_done, done, feed


class Saturated:
    """Generation takes no time and admission is at its limit; only groups in `hang` don't end.

    A publish starts with the commit that makes it due. It is acknowledged once `publish_takes`
    more updates are committed, or when the learner has nothing to do but to wait for it; the
    next one starts then.
    """

    def __init__(
        self, schedule: Schedule, *, hang: tuple[int, ...] = (), publish_takes: int = 0
    ) -> None:
        self.ledger = Ledger(schedule)
        self.hang = hang
        self.lags: list[list[int]] = []
        self._versions: dict[int, int] = {}
        self._publish_takes = publish_takes
        self._publishing: tuple[int, int] | None = None  # the version, and v at its start

    def update(self) -> list[Decision]:
        """Form, train and commit the next batch; return what was decided, batch first."""
        batch = len(self.lags)
        self.generate()
        decisions = self.tell(BatchRequested())
        if not decisions and self._publishing:
            self._acknowledge(self._publishing[0])
            decisions = self.generate()
        formed = decisions[0]
        assert isinstance(formed, FormBatch)
        assert formed.batch == batch
        self.lags.append([batch - self._versions[index] for index in formed.indexes])
        self.tell(Committed(batch))
        self._publish()
        return decisions

    def updates(self, number: int) -> None:
        for _ in range(number):
            self.update()

    def generate(self) -> list[Decision]:
        self.ledger = admit_all(self.ledger)
        self._versions |= {group.index: group.version for group in self.ledger.running}
        return self.tell(*all_done(self.ledger, but=self.hang))

    def tell(self, *events: Event) -> list[Decision]:
        self.ledger, decisions = feed(self.ledger, *events)
        return [decision for decision in decisions if not isinstance(decision, Collect)]

    def _publish(self) -> None:
        if self._publishing:
            version, start = self._publishing
            if self.ledger.committed >= start + self._publish_takes:
                self._acknowledge(version)
        self._start_publish()

    def _start_publish(self) -> None:
        due = publish_due(self.ledger)
        if due is not None and self._publishing is None:
            self._publishing = (due, self.ledger.committed)
            if self._publish_takes == 0:
                self._acknowledge(due)

    def _acknowledge(self, version: int) -> None:
        self.tell(Published(version))
        self._publishing = None
        self._start_publish()


# Version 0 may sample the batches 0 to eta: the lags 0, 1, ..., eta. From then on each publish of
# a version p opens the batches up to p + eta. The publish before, of p - m, had opened those up
# to p - m + eta, so version p samples the m batches p + eta - m + 1 to p + eta. Batch d is applied
# to version d: their lags are eta - m + 1 to eta, again and again.
#
# For instance m = 2, eta = 2. Version 0: batches 0, 1, 2, with the lags 0, 1, 2. Version 2, which
# exists once batch 1 is committed, may sample up to batch 4: batches 3 and 4, with the lags 1 and
# 2. Version 4, after batch 3, samples batches 5 and 6: again 1 and 2.
LAGS = {
    # (m, eta): the lags of batches 0, 1, 2, ...
    (1, 0): [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    (1, 1): [0, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    (1, 2): [0, 1, 2, 2, 2, 2, 2, 2, 2, 2],
    (1, 3): [0, 1, 2, 3, 3, 3, 3, 3, 3, 3],
    (2, 1): [0, 1, 0, 1, 0, 1, 0, 1, 0, 1],  # version 2 samples batches 2 and 3, 4: 4 and 5
    (2, 2): [0, 1, 2, 1, 2, 1, 2, 1, 2, 1],  # version 2 samples batches 3 and 4, 4: 5 and 6
    (2, 3): [0, 1, 2, 3, 2, 3, 2, 3, 2, 3],  # version 2 samples batches 4 and 5, 4: 6 and 7
    (3, 2): [0, 1, 2, 0, 1, 2, 0, 1, 2, 0],  # version 3 samples batches 3 to 5, 6: 6 to 8
    (3, 3): [0, 1, 2, 3, 1, 2, 3, 1, 2, 3],  # version 3 samples batches 4 to 6, 6: 7 to 9
}
# K decides nothing here, as no lag is above eta <= K.
TABLE = [(every, mean, most, LAGS[every, mean]) for every, mean in LAGS for most in range(mean, 4)]


def test_the_table_has_all_combinations_that_are_allowed() -> None:
    rows = [row[:3] for row in TABLE]
    numbers = range(4)
    assert rows == [
        (every, mean, most)
        for every in numbers[1:]
        for mean in numbers
        for most in numbers
        if most >= mean >= every - 1
    ]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("over_age", ["drop", "mask"])
@pytest.mark.parametrize(("every", "mean", "most", "expected"), TABLE)
def test_exact_lags(
    every: int, mean: int, most: int, expected: list[int], deterministic: bool, over_age: str
) -> None:
    for size in (1, 3):
        schedule = Schedule(
            size,
            mean,
            most,
            publish_every=every,
            deterministic=deterministic,
            over_age=over_age,  # type: ignore[arg-type]  # one of the two
        )
        run = Saturated(schedule)
        run.updates(len(expected))
        assert run.lags == [[lag] * size for lag in expected]
        seen = counts(run.ledger)
        assert (seen.lag_sum, seen.lag_max) == (size * sum(expected), max(expected))
        assert seen.dropped == {}


@pytest.mark.parametrize(("every", "mean"), LAGS)
def test_exact_lags_as_a_formula(every: int, mean: int) -> None:
    for batch, lag in enumerate(LAGS[every, mean]):
        cycle = mean + 1 - every + (batch - mean - 1) % every
        assert lag == (batch if batch <= mean else cycle)


@pytest.mark.parametrize(
    ("every", "mean", "publish_takes", "expected"),
    [
        # Version 0 samples batches 0 and 1. The publish of version 1 starts with v = 1 and would
        # take until v = 3; but batch 2 can't be sampled before it, so the learner waits at v = 2,
        # and batch 2 is of version 1. The next publish starts then, of version 2, and batch 3
        # waits for it. A slow publish costs time, and no lag.
        (1, 1, 2, [0, 1, 1, 1, 1, 1, 1, 1]),
        # Version 0 samples batches 0 to 3. The publish of version 1 runs from v = 1 to v = 3 and
        # opens batch 4, with lag 3. Due is now version 3, and version 2 is never published. It is
        # acknowledged at v = 5 and opens batches 5 and 6, with the lags 2 and 3; so does version 5
        # from v = 7 on with batches 7 and 8. The bounds hold with versions left out.
        (1, 3, 2, [0, 1, 2, 3, 3, 2, 3, 2, 3, 2, 3]),
        # Version 2 is acknowledged at v = 3 in place of 2. It opens batches 3 and 4, and batch 3
        # is the next one: just in time, and the lags are those of the table.
        (2, 2, 1, [0, 1, 2, 1, 2, 1, 2, 1, 2]),
        # Version 2 would be acknowledged at v = 5, but batch 4 needs it: the learner waits at
        # v = 4. It opens batches 4 and 5, with the lags 2 and 3. Version 4, started then, would
        # come at v = 7, and is waited for at v = 6.
        (2, 3, 3, [0, 1, 2, 3, 2, 3, 2, 3, 2]),
    ],
)
def test_exact_lags_with_a_slow_publish(
    every: int, mean: int, publish_takes: int, expected: list[int]
) -> None:
    for size in (1, 3):
        schedule = Schedule(size, mean, 4, publish_every=every)
        run = Saturated(schedule, publish_takes=publish_takes)
        run.updates(len(expected))
        assert run.lags == [[lag] * size for lag in expected]


@pytest.mark.parametrize("publish_takes", [1, 2, 3])
@pytest.mark.parametrize(("every", "mean"), LAGS)
def test_exact_lags_in_lockstep_do_not_change_with_a_slow_publish(
    every: int, mean: int, publish_takes: int
) -> None:
    schedule = Schedule(2, mean, 3, publish_every=every, deterministic=True)
    run = Saturated(schedule, publish_takes=publish_takes)
    run.updates(10)
    assert run.lags == [[lag] * 2 for lag in LAGS[every, mean]]


@pytest.mark.parametrize(
    ("every", "mean", "most", "expected"),
    [
        # Group 0 is of version 0 and hangs; B = 2. It is cancelled when batch K has formed,
        # before version K + 1, with which it would expire, is even committed.
        #
        # Version 0: groups 0 to 3. Batch 0 takes 1, 2. Version 1 has one place less, U = {0, 3}:
        # groups 4, 5. Batch 1 takes 3 (version 0) and 4. Now d = 2 = K + 1: group 0 goes, its
        # place is free, and version 2 fills 3 places: 6, 7, 8. Batch 2 takes 5 (version 1) and 6,
        # batch 3 takes 7 and 8 of version 2.
        (1, 1, 1, [[0, 0], [1, 0], [1, 0], [1, 1], [1, 1]]),
        # The same, but group 0 keeps its place until batch 3 has formed: until then each batch
        # takes one group that waited and one that is new. Batch 4 takes 9 of version 3, and 10,
        # one of 3 groups of version 4; batch 5 takes the other two.
        (1, 1, 3, [[0, 0], [1, 0], [1, 0], [1, 0], [1, 0], [1, 1]]),
        # Version 0: groups 0 to 5. Batch 0 takes 1, 2; batch 1 takes 3, 4; no publish yet.
        # Version 2 fills (2 + 3 - 2) * 2 = 6 places but for 0 and 5: 6 to 9. Batch 2 takes 5 and
        # 6, d = 3 = K + 1, and group 0 goes. Its place is filled under version 2 as well: 10.
        # Batch 3 takes 7, 8. Version 4 has U = {9, 10} and fills 4 places. Batch 4 takes 9, 10.
        (2, 2, 2, [[0, 0], [1, 1], [2, 0], [1, 1], [2, 2], [1, 1], [2, 2]]),
    ],
)
def test_a_hanging_group_is_cancelled_as_soon_as_it_can_no_longer_be_used(
    every: int, mean: int, most: int, expected: list[list[int]]
) -> None:
    run = Saturated(Schedule(2, mean, most, publish_every=every), hang=(0,))
    for batch in range(len(expected)):
        published = run.ledger.published
        decisions = run.update()
        expired = [Drop(0, "over_age"), Reissue("task-0", 1)] if batch == most else []
        assert decisions[1:] == expired
        assert published <= most
        if expired:
            break
    run.updates(len(expected) - len(run.lags))
    assert run.lags == expected
    assert counts(run.ledger).dropped == {"over_age": 1}


def test_a_straggler_that_ends_in_time_is_used_with_the_largest_lag() -> None:
    # As above with eta = 1, K = 3, up to batch 2; then U = {0, 7}, and version 3 has added 8, 9.
    # Group 0 ends, is the oldest, and so is in batch 3 with lag 3; with it is 7 of version 2.
    run = Saturated(Schedule(2, max_mean_lag=1, max_lag=3), hang=(0,))
    run.updates(3)
    run.hang = ()
    run.updates(3)
    assert run.lags == [[0, 0], [1, 0], [1, 0], [3, 1], [1, 1], [1, 1]]
    assert counts(run.ledger).dropped == {}


def test_where_no_place_is_left_the_learner_waits_for_the_straggler_or_its_failure() -> None:
    # eta = m - 1: the 4 places of version 0 are the 2 batches until the next publish. Group 0
    # hangs, so batch 1 lacks a group, and nothing may be admitted until group 0 has ended.
    run = Saturated(Schedule(2, max_mean_lag=1, max_lag=2, publish_every=2), hang=(0,))
    run.update()
    run.generate()
    assert run.tell(BatchRequested()) == []
    assert may_admit(run.ledger) == 0
    ledger, decisions = advance(run.ledger, MemberFailed(0, 0, 2, "env_timeout"))
    assert counts(ledger).ignored == 1  # that try is not the present one
    for attempt in range(3):
        decisions = run.tell(MemberFailed(0, 0, attempt, "env_timeout"))
    assert decisions == [Drop(0, "env_timeout")]
    assert may_admit(run.ledger) == 1
    assert run.generate() == [FormBatch(1, (3, 4))]


# Masking. Group 0 is of version 0 first, and goes on under newer ones.


def masked_run() -> Saturated:
    """As with eta = 1, K = 1 above, but nothing is cancelled: U = {0, 7, 8, 9} before batch 3."""
    run = Saturated(Schedule(2, max_mean_lag=1, max_lag=1, over_age="mask"), hang=(0,))
    run.updates(3)
    assert run.lags == [[0, 0], [1, 0], [1, 0]]
    run.generate()
    return run


def test_masked_a_straggler_is_used_and_counts_the_lag_of_what_is_trained() -> None:
    # Its last tokens, of version 2, have lag 1 in batch 3. Group 7 is of version 2.
    run = masked_run()
    before = counts(run.ledger).lag_sum
    assert run.tell(done(0, 0, 2), BatchRequested()) == [FormBatch(3, (0, 7))]
    seen = counts(run.ledger)
    assert (seen.lag_sum - before, seen.lag_max, seen.dropped) == (2, 1, {})


def test_masked_a_straggler_without_a_token_young_enough_is_dropped_when_it_ends() -> None:
    # Its last tokens, of version 1, would have lag 2 in batch 3.
    run = masked_run()
    assert run.tell(done(0, 0, 1)) == [Drop(0, "over_age"), Reissue("task-0", 1)]
    assert counts(run.ledger).dropped == {"over_age": 1}


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (0, [Drop(2, "over_age"), Reissue("task-2", 1)]),  # 3 - 0 > K once batch 2 has formed
        (1, []),  # 3 - 1 = K: its newest tokens may be trained in batch 3
    ],
)
def test_masked_a_ready_group_is_dropped_only_when_all_of_it_is_over_age(
    newest: int, expected: list[Decision]
) -> None:
    # eta = K = 2. Version 0: groups 0 to 5. Groups 0, 1 and 2 hang; batch 0 takes 3, 4. Version 1
    # adds 6, 7; batch 1 takes 5, 6. Version 2 adds 8, 9. Now the three end; batch 2 takes 0, 1.
    schedule = Schedule(2, max_mean_lag=2, max_lag=2, over_age="mask")
    run = Saturated(schedule, hang=(0, 1, 2))
    run.updates(2)
    run.generate()
    assert run.tell(*(done(index, 0, newest) for index in range(3))) == []
    assert run.tell(BatchRequested()) == [FormBatch(2, (0, 1)), *expected]
    if not expected:
        decisions = run.tell(Committed(2), Published(3), BatchRequested())
        assert decisions == [FormBatch(3, (2, 7))]
        assert counts(run.ledger).lag_max == 2


def test_dropped_not_masked_such_a_ready_group_is_too_old() -> None:
    run = Saturated(Schedule(2, max_mean_lag=2, max_lag=2), hang=(0, 1, 2))
    run.updates(2)
    run.generate()
    decisions = run.tell(*(done(index, 0, 1) for index in range(3)), BatchRequested())
    assert decisions == [FormBatch(2, (0, 1)), Drop(2, "over_age"), Reissue("task-2", 1)]
