"""The ledger against a naive reference, for arbitrary sequences of events."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.pipeline.groups.ledger import (
    Abandoned,
    Admitted,
    BatchRequested,
    Cancelled,
    Committed,
    Decision,
    Event,
    Issue,
    Ledger,
    MemberDone,
    MemberFailed,
    Published,
    Resumed,
    advance,
    counts,
    is_stuck,
    may_admit,
    oldest_needed,
    publish_due,
    sampled_version,
)
from tests.groups.driving import written_and_read
from tests.groups.reference import Reference
from tests.groups.world import rules, schedules

REWARDS = st.sampled_from([0.0, 1.0])
REASONS = st.sampled_from(["env_error", "sampler_timeout"])
PICK = st.integers(0, 99)


class LedgerMachine(RuleBasedStateMachine):
    """Applies each event to both, and compares decisions and counts."""

    @initialize(schedule=schedules(), members=rules())
    def start(self, schedule, members) -> None:
        self.model = Reference(schedule, members)
        self.ledger = Ledger(schedule, members)

    def tell(self, event: Event, expected: list[Decision]) -> None:
        self.ledger, decisions = advance(self.ledger, event)
        assert list(decisions) == expected + self.model.form()

    @precondition(lambda self: self.model.room() > 0)
    @rule(attempt=st.integers(0, 1))
    def admit_all(self, attempt: int) -> None:
        issues = []
        for _ in range(self.model.room()):
            issues.append(Issue(f"task-{len(self.model.groups)}", attempt))
            assert self.model.admit(*issues[-1]) == []
        self.tell(Admitted(tuple(issues)), [])

    @precondition(lambda self: self.model.at("running"))
    @rule(pick=PICK, member=PICK, newer=st.integers(0, 3), span=st.integers(0, 3), reward=REWARDS)
    def finish(self, pick: int, member: int, newer: int, span: int, reward: float) -> None:
        index, member = self.running_member(pick, member)
        self.end(index, member, (newer, span), reward)

    @precondition(lambda self: len(self.model.at("running")) > 2)
    @rule(kept=st.integers(0, 2), newer=st.lists(st.integers(0, 2), min_size=12, max_size=12))
    def finish_most_backwards(self, kept: int, newer: list[int]) -> None:
        """The newest groups end first, and the oldest `kept` not yet."""
        for index in self.model.at("running")[kept:][::-1]:
            for member in range(self.model.rule.size):
                if index not in self.model.at("running"):
                    break  # dropped meanwhile
                if self.model.groups[index].members[member].place == "running":
                    span = (newer[index % 12], newer[(index + member) % 12])
                    self.end(index, member, span, reward=float(member % 2))

    @precondition(lambda self: self.model.at("running"))
    @rule(pick=PICK, member=PICK, reason=REASONS)
    def fail(self, pick: int, member: int, reason: str) -> None:
        index, member = self.running_member(pick, member)
        attempt = self.model.groups[index].members[member].attempt
        expected = self.model.failed(index, member, reason)
        self.tell(MemberFailed(index, member, attempt, reason), expected)

    @precondition(lambda self: self.model.groups)
    @rule(pick=PICK, member=PICK, attempt=st.integers(0, 3), well=st.booleans())
    def late_member(self, pick: int, member: int, attempt: int, well: bool) -> None:
        index, member = pick % len(self.model.groups), member % self.model.rule.size
        if self.model.is_late(index, member, attempt):
            self.model.ignored += 1
            failed = MemberFailed(index, member, attempt, "late")
            self.tell(MemberDone(index, member, attempt, 0, 0, 1.0) if well else failed, [])

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        if pick < 5:  # not often
            index = pick % (len(self.model.groups) + 1)
            runs = index in self.model.at("running")
            self.model.ignored += not runs
            self.tell(Cancelled(index), self.model.cancel(index) if runs else [])

    @rule()
    def request(self) -> None:
        self.model.requested = not self.model.ended
        self.tell(BatchRequested(), [])

    @precondition(lambda self: self.model.committed < len(self.model.batches))
    @rule(publish=st.booleans())
    def commit(self, publish: bool) -> None:
        for index in self.model.batches[self.model.committed]:
            self.model.groups[index].place = "consumed"
        self.model.committed += 1
        self.tell(Committed(self.model.committed - 1), [])
        if publish and self.model.due() is not None:
            self.publish()

    @precondition(lambda self: self.model.due() is not None)
    @rule()
    def publish(self) -> None:
        version = self.model.due()
        assert version is not None
        self.model.published = version
        self.tell(Published(version), [])

    @rule(back=st.integers(0, 2))
    def outdated_publish(self, back: int) -> None:
        self.model.ignored += 1
        self.tell(Published(self.model.published - back), [])

    @precondition(
        lambda self: not self.model.ended and self.model.committed == len(self.model.batches)
    )
    @rule(pick=PICK)
    def resume(self, pick: int) -> None:
        if pick < 20:  # not often, or few groups get old
            self.ledger = written_and_read(self.ledger)
            decisions = self.model.resume()
            self.tell(Resumed(self.model.published), decisions)

    @precondition(lambda self: len(self.model.groups) > 12)
    @rule(pick=PICK)
    def abandon(self, pick: int) -> None:
        if pick < 10:
            self.tell(Abandoned(), self.model.abandon())

    @invariant()
    def counts_agree(self) -> None:
        seen, model = counts(self.ledger), self.model
        places = ["running", "ready", "formed", "consumed"]
        of_each = Counter(group.place for group in model.groups)
        assert [seen.running, seen.ready, seen.in_batch, seen.consumed] == [
            of_each.pop(place, 0) for place in places
        ]
        assert seen.dropped == of_each
        assert seen.admitted == len(model.groups)
        assert (seen.reissued, seen.ignored) == (model.reissued, model.ignored)
        lags = model.lags()
        assert (seen.lag_sum, seen.lag_max) == (sum(lags), max(lags, default=0))

    @invariant()
    def questions_agree(self) -> None:
        model = self.model
        assert may_admit(self.ledger) == model.room()
        assert publish_due(self.ledger) == model.due()
        assert oldest_needed(self.ledger) == model.needed()
        assert sampled_version(self.ledger, 17) == model.pinned(17)
        assert not is_stuck(self.ledger)

    def running_member(self, pick: int, member: int) -> tuple[int, int]:
        """A running member of a running group."""
        running = self.model.at("running")
        index = running[pick % len(running)]
        members = self.model.groups[index].members
        places = [place for place, found in enumerate(members) if found.place == "running"]
        return index, places[member % len(places)]

    def end(self, index: int, member: int, later: tuple[int, int], reward: float) -> None:
        """A member ends well, sampled under versions so much later than its group's first."""
        model = self.model
        first = model.groups[index].start_version
        last = first if model.schedule.deterministic else model.committed
        oldest = min(last, first + later[0])
        newest = min(last, oldest + later[1])
        attempt = model.groups[index].members[member].attempt
        model.done(index, member, (oldest, newest), reward)
        event = MemberDone(index, member, attempt, oldest, newest, reward)
        self.tell(event, model.done_decisions(index))


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestLedger = LedgerMachine.TestCase
