"""Everything around a ledger, driven by two integers a step: what happens, and to which.

The world keeps its own facts about each group (when admitted, which members ended under which
versions, in which batch, why dropped) from the events that it gives and the decisions that it
gets, in plain dicts, and never looks into the ledger for them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headrace.pipeline.groups.ledger import (
    Admitted,
    BatchRequested,
    Cancelled,
    Collect,
    Committed,
    Drop,
    Event,
    FormBatch,
    Issue,
    Ledger,
    MemberDone,
    MemberFailed,
    MemberRule,
    Published,
    Reissue,
    Restart,
    Resumed,
    Retry,
    Schedule,
    advance,
    may_admit,
    resumed_version,
    sampled_version,
)
from tests.groups.driving import written_and_read

# Two bytes a step. Long from the start, as short runs never reach the interesting states; a
# failure shrinks towards zeros, which are admissions at a closed gate: nothing at all.
STEPS = st.binary(min_size=600, max_size=600)


def pairs(steps: bytes) -> Iterator[tuple[int, int]]:
    """The steps: an action and a pick each."""
    return zip(steps[::2], steps[1::2], strict=True)


@st.composite
def schedules(draw: st.DrawFn, *, deterministic: bool | None = None) -> Schedule:
    """Any small schedule, or one of a kind."""
    lockstep = draw(st.booleans()) if deterministic is None else deterministic
    every = draw(st.integers(1, 3))
    max_mean_lag = draw(st.integers(every - 1, 4))
    return Schedule(
        draw(st.integers(1, 3)),
        max_mean_lag=max_mean_lag,
        max_lag=max_mean_lag + draw(st.integers(0, 2)),
        publish_every=every,
        max_reissues=draw(st.integers(0, 2)),
        equal_rewards="keep" if lockstep else draw(st.sampled_from(["keep", "drop"])),
        deterministic=lockstep,
        over_age=draw(st.sampled_from(["drop", "mask"])),
    )


@st.composite
def rules(draw: st.DrawFn, *, least: int = 1) -> MemberRule:
    """Any rule of a small group."""
    size = draw(st.integers(least, 3))
    return MemberRule(
        size,
        draw(st.sampled_from(["retry", "survivors", "drop"])),
        max_retries=draw(st.integers(0, 2)),
        min_size=draw(st.integers(1, size)),
    )


@dataclass
class World:
    """See the module."""

    schedule: Schedule
    rule: MemberRule
    ledger: Ledger
    faults: bool = True  # members may fail, groups may be cancelled
    new_tasks: int = 0
    waiting_tasks: list[tuple[str, int]] = field(default_factory=list)
    task_of: dict[int, tuple[str, int]] = field(default_factory=dict)
    started_under: dict[int, int] = field(default_factory=dict)
    attempts: dict[int, dict[int, int]] = field(default_factory=dict)  # of members that run
    versions: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)  # of those done
    lost: dict[int, int] = field(default_factory=dict)
    collected: dict[int, tuple[int, ...]] = field(default_factory=dict)
    batches: list[tuple[int, ...]] = field(default_factory=list)
    gone: dict[int, str] = field(default_factory=dict)
    reissued: set[int] = field(default_factory=set)
    committed: int = 0
    published: int = 0
    publishing: int | None = None  # a publish under way: slow ones are acknowledged late

    def running(self) -> list[int]:
        return [i for i in self.task_of if i not in self.collected and i not in self.gone]

    def ready(self) -> list[int]:
        used = self.used()
        return [i for i in self.collected if i not in used and i not in self.gone]

    def used(self) -> set[int]:
        return {index for batch in self.batches for index in batch}

    def oldest(self, index: int) -> int:
        return min(oldest for oldest, _ in self.versions[index].values())

    def newest(self, index: int) -> int:
        return max(newest for _, newest in self.versions[index].values())

    def tell(self, event: Event) -> None:
        self.ledger, decisions = advance(self.ledger, event)
        dropped = [decision.index for decision in decisions if isinstance(decision, Drop)]
        for decision in decisions:
            match decision:
                case FormBatch(number, indexes):
                    assert number == len(self.batches)
                    self.batches.append(indexes)
                case Retry(index, member, attempt):
                    assert attempt == self.attempts[index][member] + 1
                    self.attempts[index][member] = attempt
                case Collect(index, members):
                    self.collected[index] = members
                case Drop(index, reason):
                    assert index in self.running() or index in self.ready()
                    self.gone[index] = reason
                case Reissue(task_id, attempt):
                    self.waiting_tasks.append((task_id, attempt))
                    tasks = [(task_id, attempt - 1)]
                    self.reissued |= {i for i in dropped if self.task_of[i] in tasks}
                case Restart(index, task_id, attempt):
                    assert self.task_of[index] == (task_id, attempt)
                    self.start(index)

    def start(self, index: int) -> None:
        pinned = sampled_version(self.ledger, index)
        self.started_under[index] = self.published if pinned is None else pinned
        self.attempts[index] = dict.fromkeys(range(self.rule.size), 0)
        self.versions[index] = {}
        self.lost[index] = 0

    # What may happen; the integers decide to which.

    def admit(self, pick: int) -> None:
        """Up to four groups start."""
        issues = []
        for _ in range(min(may_admit(self.ledger), 1 + pick % 4)):
            if self.waiting_tasks:
                task = self.waiting_tasks.pop(0)
            else:
                task = (f"task-{self.new_tasks}", 0)
                self.new_tasks += 1
            index = len(self.task_of)
            self.task_of[index] = task
            self.start(index)
            issues.append(Issue(*task))
        self.tell(Admitted(tuple(issues)))

    def finish(self, pick: int) -> None:
        """All members of a running group end well."""
        if running := self.running():
            index = running[pick % len(running)]
            if index % 4 == 1 and pick > 16:  # a straggler: some of them grow too old
                return
            for member in list(self.attempts[index]):
                if index in self.running():
                    self.end(index, member, pick)

    def finish_one(self, pick: int) -> None:
        """A member ends well."""
        if running := self.running():
            index = running[pick % len(running)]
            members = list(self.attempts[index])
            self.end(index, members[pick // 8 % len(members)], pick)

    def end(self, index: int, member: int, pick: int) -> None:
        first = self.started_under[index]
        # Any versions from the group's first to the newest one committed; often the first.
        last = first if self.schedule.deterministic or not pick & 4 else self.committed
        oldest = first + (pick // 8) % (last - first + 1)
        newest = last if pick & 8 else oldest
        attempt = self.attempts[index].pop(member)
        self.versions[index][member] = (oldest, newest)
        reward = float(pick % 11 > 0 and member % 2)
        self.tell(MemberDone(index, member, attempt, oldest, newest, reward))

    def fail(self, pick: int) -> None:
        """A member's try fails."""
        if self.faults and pick < 40 and (running := self.running()):
            index = running[pick % len(running)]
            members = list(self.attempts[index])
            member = members[pick // 8 % len(members)]
            attempt = self.attempts[index][member]
            self.tell(MemberFailed(index, member, attempt, "env_error"))
            if self.attempts[index][member] == attempt:  # no Retry
                del self.attempts[index][member]
                self.lost[index] += 1

    def cancel(self, pick: int) -> None:
        if self.faults and pick < 16 and (running := self.running()):
            self.tell(Cancelled(running[pick % len(running)]))

    def request(self, _: int) -> None:
        self.tell(BatchRequested())

    def commit(self, _: int) -> None:
        if self.committed < len(self.batches):
            self.committed += 1
            self.tell(Committed(self.committed - 1))

    def start_publish(self, _: int) -> None:
        every = self.schedule.publish_every
        due = [v for v in range(self.published + 1, self.committed + 1) if v % every == 0]
        if self.publishing is None and due:
            self.publishing = due[0 if self.schedule.deterministic else -1]

    def acknowledge(self, _: int) -> None:
        if self.publishing is not None:
            self.published, self.publishing = self.publishing, None
            self.tell(Published(self.published))

    def resume(self, pick: int) -> None:
        """The run is killed, and goes on from what was saved."""
        if pick < 24 and self.committed == len(self.batches):
            self.published, self.publishing = resumed_version(self.ledger), None
            restarted = self.running()
            self.ledger = written_and_read(self.ledger)
            self.tell(Resumed(self.published))
            assert restarted == self.running()
            assert not any(self.versions[index] for index in restarted)

    def late_event(self, pick: int) -> None:
        over = [*self.gone, *self.collected]
        if over:
            index = over[pick % len(over)]
            self.tell(MemberDone(index, 0, 0, 0, 0, 1.0))
            self.tell(MemberFailed(index, 0, 0, "late"))
            self.tell(Cancelled(index))

    def step(self, action: int, pick: int) -> None:
        actions: list[Callable[[int], None]] = [
            *[self.admit] * 4,
            *[self.finish] * 10,
            self.finish_one,
            *[self.request] * 4,
            *[self.commit] * 4,
            *[self.start_publish] * 3,
            *[self.acknowledge] * 2,
            self.fail,
            self.cancel,
            self.resume,
            self.late_event,
        ]
        actions[action % len(actions)](pick)

    def run(self, steps: bytes) -> None:
        for action, pick in pairs(steps):
            self.step(action, pick)


@st.composite
def worlds(draw: st.DrawFn, *, deterministic: bool | None = None) -> World:
    """A world before its first step."""
    schedule = draw(schedules(deterministic=deterministic))
    rule = draw(rules(least=2 if schedule.equal_rewards == "drop" else 1))  # one equals itself
    return World(schedule, rule, Ledger(schedule, rule))
