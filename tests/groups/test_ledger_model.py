"""The ledger against a naive reference: one dict of groups, everything found by looking."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
)


class Reference:
    """What DESIGN calls the bounded schedule, in the plainest words."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.place: list[str] = []  # of each group: running, ready, batch, or a drop's reason
        self.version: list[int] = []
        self.attempt: list[int] = []
        self.formed = self.committed = self.published = 0
        self.requested = self.ended = False

    def at(self, place: str) -> list[int]:
        return [index for index, where in enumerate(self.place) if where == place]

    def room(self) -> int:
        outstanding = len(self.at("running")) + len(self.at("ready"))
        ahead = self.published + self.schedule.max_mean_lag + 1 - self.formed
        return 0 if self.ended else max(0, ahead * self.schedule.batch_groups - outstanding)

    def form(self) -> list[Decision]:
        size, ready = self.schedule.batch_groups, self.at("ready")
        if not self.requested or len(ready) < size:
            return []
        taken = sorted(ready, key=lambda index: (self.version[index], index))[:size]
        for index in taken:
            self.place[index] = "batch"
        self.formed += 1
        self.requested = False
        return [FormBatch(self.formed - 1, tuple(taken)), *self.expire()]

    def expire(self) -> list[Decision]:
        decisions: list[Decision] = []
        again: list[Decision] = []
        for place, action in (("running", Cancel), ("ready", Drop)):
            by_age = sorted(self.at(place), key=lambda index: (self.version[index], index))
            for index in by_age:
                if self.formed - self.version[index] > self.schedule.max_lag:
                    self.place[index] = "over_age"
                    decisions.append(action(index, "over_age"))
                    if self.attempt[index] < self.schedule.max_reissues:
                        again.append(Reissue(f"task-{index}", self.attempt[index] + 1))
        return decisions + again

    def drop(self, place: str, reason: str) -> list[int]:
        indexes = self.at(place)
        for index in indexes:
            self.place[index] = reason
        return indexes


class LedgerMachine(RuleBasedStateMachine):
    """Applies each event to both and compares decisions and counts."""

    @initialize(
        size=st.integers(1, 3),
        mean=st.integers(0, 3),
        more=st.integers(0, 2),
        equal=st.sampled_from(["keep", "drop"]),
    )
    def start(self, size: int, mean: int, more: int, equal: str) -> None:
        schedule = Schedule(
            size,
            max_mean_lag=mean,
            max_lag=mean + more,
            max_reissues=1,
            equal_rewards=equal,  # type: ignore[arg-type]  # one of the two
        )
        self.model = Reference(schedule)
        self.ledger = Ledger(schedule)

    def tell(self, event: Event, expected: list[Decision]) -> None:
        self.ledger, decisions = advance(self.ledger, event)
        assert list(decisions) == expected + self.model.form()

    @precondition(lambda self: self.model.room() > 0)
    @rule(attempt=st.integers(0, 1))
    def admit_all(self, attempt: int) -> None:
        for _ in range(self.model.room()):
            index = len(self.model.place)
            self.model.place.append("running")
            self.model.version.append(self.model.published)
            self.model.attempt.append(attempt)
            self.tell(Admitted(f"task-{index}", attempt), [])

    @precondition(lambda self: len(self.model.at("running")) > 2)
    @rule(kept=st.integers(0, 2), newer=st.lists(st.integers(0, 2), min_size=12, max_size=12))
    def finish_most_backwards(self, kept: int, newer: list[int]) -> None:
        """The newest groups end first, and the oldest `kept` not yet."""
        for index in self.model.at("running")[kept:][::-1]:
            if index in self.model.at("running"):  # not cancelled meanwhile
                self.end(index, newer[index % 12], useful=True)

    @precondition(lambda self: self.model.at("running"))
    @rule(pick=st.integers(0, 99), newer=st.integers(0, 3), useful=st.booleans())
    def finish(self, pick: int, newer: int, useful: bool) -> None:
        running = self.model.at("running")
        self.end(running[pick % len(running)], newer, useful=useful)

    def end(self, index: int, newer: int, *, useful: bool) -> None:
        model = self.model
        version = min(model.committed, model.version[index] + newer)
        expected: list[Decision] = []
        if not useful and model.schedule.equal_rewards == "drop":
            model.place[index] = "equal_rewards"
            expected = [Drop(index, "equal_rewards")]
        else:
            model.place[index] = "ready"
            model.version[index] = version
        self.tell(GroupReady(index, version, useful), expected)

    @precondition(lambda self: self.model.at("running"))
    @rule(pick=st.integers(0, 99), reason=st.sampled_from(["env_error", "sampler_timeout"]))
    def fail(self, pick: int, reason: str) -> None:
        running = self.model.at("running")
        index = running[pick % len(running)]
        self.model.place[index] = reason
        self.tell(GroupFailed(index, reason), [Drop(index, reason)])

    @precondition(lambda self: len(self.model.at("running")) < len(self.model.place))
    @rule(pick=st.integers(0, 99))
    def late_event(self, pick: int) -> None:
        over = [i for i, place in enumerate(self.model.place) if place != "running"]
        self.tell(GroupFailed(over[pick % len(over)], "late"), [])

    @rule()
    def request(self) -> None:
        self.model.requested = not self.model.ended
        self.tell(BatchRequested(), [])

    @precondition(lambda self: self.model.committed < self.model.formed)
    @rule(publish=st.booleans())
    def commit(self, publish: bool) -> None:
        self.model.committed += 1
        self.tell(Committed(self.model.committed - 1), [])
        if publish:
            self.model.published = self.model.committed
            self.tell(Published(self.model.published), [])

    @precondition(lambda self: len(self.model.place) > 12)
    @rule()
    def abandon(self) -> None:
        self.model.ended, self.model.requested = True, False
        running = self.model.drop("running", "run_ended")
        by_age = sorted(
            self.model.at("ready"), key=lambda index: (self.model.version[index], index)
        )
        self.model.drop("ready", "run_ended")
        cancels = [Cancel(index, "run_ended") for index in running]
        self.tell(Abandoned(), [*cancels, *(Drop(index, "run_ended") for index in by_age)])

    @invariant()
    def counts_agree(self) -> None:
        seen, size = counts(self.ledger), self.model.schedule.batch_groups
        assert may_admit(self.ledger) == self.model.room()
        assert seen.running == len(self.model.at("running"))
        assert seen.ready == len(self.model.at("ready"))
        assert seen.consumed == self.model.committed * size
        assert seen.in_batch + seen.consumed == len(self.model.at("batch"))
        places = {"running", "ready", "batch"}
        reasons = [place for place in self.model.place if place not in places]
        assert seen.dropped == {reason: reasons.count(reason) for reason in reasons}


LedgerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=60)
TestLedger = LedgerMachine.TestCase
