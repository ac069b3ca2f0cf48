"""Laws 3 to 6 for arbitrary sequences of events, against an oracle that only watches.

The oracle keeps its own facts about each group (when admitted, under which versions sampled,
in which batch, why dropped) from the events given and the decisions taken, in plain dicts, and
never looks into the ledger for them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.groups.ledger import (
    Abandoned,
    Admitted,
    BatchRequested,
    Cancel,
    Committed,
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


@dataclass
class World:
    """Everything around the ledger, driven by two integers a step: what happens, to which."""

    schedule: Schedule
    ledger: Ledger
    new_tasks: int = 0
    waiting_tasks: list[tuple[str, int]] = field(default_factory=list)
    admitted_under: dict[int, int] = field(default_factory=dict)
    task_of: dict[int, tuple[str, int]] = field(default_factory=dict)
    oldest: dict[int, int] = field(default_factory=dict)  # W of the groups that ended well
    batches: list[tuple[int, ...]] = field(default_factory=list)
    gone: dict[int, str] = field(default_factory=dict)
    committed: int = 0
    published: int = 0
    publishing: int | None = None  # a publish under way: slow ones are acknowledged late
    requested: bool = False

    def running(self) -> list[int]:
        used = {index for batch in self.batches for index in batch}
        ended = used | set(self.gone) | set(self.oldest)
        return [index for index in self.task_of if index not in ended]

    def ready(self) -> list[int]:
        used = {index for batch in self.batches for index in batch}
        return [index for index in self.oldest if index not in used | set(self.gone)]

    def tell(self, event: Event) -> None:
        self.ledger, decisions = advance(self.ledger, event)
        for decision in decisions:
            match decision:
                case FormBatch(number, indexes):
                    assert number == len(self.batches)
                    self.batches.append(indexes)
                    self.requested = False
                case Cancel(index, reason):
                    assert index in self.running()
                    self.gone[index] = reason
                case Drop(index, reason):
                    assert index not in self.gone
                    self.gone[index] = reason
                case Reissue(task_id, attempt):
                    self.waiting_tasks.append((task_id, attempt))

    def admit(self, _: int) -> None:
        if may_admit(self.ledger):
            if self.waiting_tasks:
                task = self.waiting_tasks.pop(0)
            else:
                task = (f"task-{self.new_tasks}", 0)
                self.new_tasks += 1
            index = len(self.task_of)
            self.task_of[index] = task
            self.admitted_under[index] = self.published
            self.tell(Admitted(*task))

    def finish(self, pick: int) -> None:
        if running := self.running():
            index = running[pick % len(running)]
            if index % 4 == 1 and pick > 8:  # a straggler: some of them grow too old
                return
            # Any version from that of its admission to the newest one committed; often the first.
            span = self.committed - self.admitted_under[index] + 1
            newer = (pick // 8) % span if pick & 4 else 0
            self.oldest[index] = self.admitted_under[index] + newer
            self.tell(GroupReady(index, self.oldest[index], useful=pick % 11 > 0))

    def fail(self, pick: int) -> None:
        if pick < 64 and (running := self.running()):
            self.tell(GroupFailed(running[pick % len(running)], "env_error"))

    def request(self, _: int) -> None:
        self.requested = True
        self.tell(BatchRequested())

    def commit(self, _: int) -> None:
        if self.committed < len(self.batches):
            self.committed += 1
            self.tell(Committed(self.committed - 1))

    def start_publish(self, _: int) -> None:
        every = self.schedule.publish_every
        target = self.committed // every * every
        if self.publishing is None and target > self.published:
            self.publishing = target

    def acknowledge(self, _: int) -> None:
        if self.publishing is not None:
            self.published, self.publishing = self.publishing, None
            self.tell(Published(self.published))

    def late_event(self, pick: int) -> None:
        if self.gone:
            self.tell(GroupReady(list(self.gone)[pick % len(self.gone)], 0))

    def step(self, action: int, pick: int) -> None:
        actions: list[Callable[[int], None]] = [
            *[self.admit] * 5,
            *[self.finish] * 4,
            *[self.request] * 2,
            *[self.commit] * 2,
            self.start_publish,
            self.acknowledge,
            self.fail,
            self.late_event,
        ]
        actions[action % len(actions)](pick)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    every = draw(st.integers(1, 3))
    max_mean_lag = draw(st.integers(every - 1, 4))
    return Schedule(
        draw(st.integers(1, 3)),
        max_mean_lag=max_mean_lag,
        max_lag=max_mean_lag + draw(st.integers(0, 3)),
        publish_every=every,
        max_reissues=draw(st.integers(0, 2)),
        equal_rewards=draw(st.sampled_from(["keep", "drop"])),
    )


# Two bytes a step. Long from the start, as short runs never reach the interesting states; a
# failure shrinks towards zeros, which are admissions at a closed gate: nothing at all.
STEPS = st.binary(min_size=600, max_size=600)
MANY = settings(max_examples=50)


def pairs(steps: bytes) -> Iterator[tuple[int, int]]:
    return zip(steps[::2], steps[1::2], strict=True)


def world_of(schedule: Schedule) -> World:
    return World(schedule, Ledger(schedule))


@MANY
@given(schedules(), STEPS)
def test_law_3_conservation(schedule: Schedule, steps: bytes) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        world.step(action, pick)
        seen = counts(world.ledger)
        assert seen.admitted == len(world.task_of)
        assert seen.running == len(world.running())
        assert seen.ready == len(world.ready())
        assert seen.consumed == world.committed * schedule.batch_groups
        assert seen.in_batch == sum(map(len, world.batches)) - seen.consumed
        assert sum(seen.dropped.values()) == len(world.gone)
        dropped = sum(seen.dropped.values())
        assert seen.admitted == (
            seen.running + seen.ready + seen.in_batch + seen.consumed + dropped
        )
    world.tell(Abandoned())
    assert world.running() == world.ready() == []


@MANY
@given(schedules(), STEPS)
def test_law_3_each_task_is_consumed_or_given_up_once(schedule: Schedule, steps: bytes) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        world.step(action, pick)
    world.tell(Abandoned())
    used = [index for batch in world.batches for index in batch]
    given_up = [
        index
        for index, reason in world.gone.items()
        if reason != "over_age" or world.task_of[index][1] == schedule.max_reissues
    ]
    ends = [world.task_of[index][0] for index in used + given_up]
    ends += [task_id for task_id, _ in world.waiting_tasks]  # to be admitted again
    assert sorted(ends) == sorted(f"task-{number}" for number in range(world.new_tasks))
    assert all(attempt <= schedule.max_reissues for _, attempt in world.task_of.values())


@MANY
@given(schedules(), STEPS)
def test_law_4_mean_lag_and_lag_are_bounded(schedule: Schedule, steps: bytes) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        world.step(action, pick)
    lags = [
        [number - world.oldest[index] for index in indexes]
        for number, indexes in enumerate(world.batches)
    ]
    total = 0
    for number, batch_lags in enumerate(lags):
        assert all(0 <= lag <= schedule.max_lag for lag in batch_lags)
        total += sum(batch_lags)
        # The mean over the first D = number + 1 batches, in the strong form of the theorem.
        assert total <= number * schedule.max_mean_lag * schedule.batch_groups
    seen = counts(world.ledger)
    assert seen.lag_sum == total
    assert seen.lag_max == max((max(batch_lags) for batch_lags in lags), default=0)


@MANY
@given(schedules(), STEPS)
def test_law_4_over_age_groups_are_removed_at_once_and_no_others(
    schedule: Schedule, steps: bytes
) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        old_enough = {
            index: len(world.batches) + 1 - world.admitted_under[index] > schedule.max_lag
            for index in world.running()
        }
        before = set(world.gone)
        world.step(action, pick)
        for index in world.running():
            assert len(world.batches) - world.admitted_under[index] <= schedule.max_lag
        for index in world.ready():
            assert len(world.batches) - world.oldest[index] <= schedule.max_lag
        for index in set(world.gone) - before:
            if world.gone[index] == "over_age" and index not in world.oldest:
                assert old_enough[index]


@MANY
@given(schedules(), STEPS)
def test_law_5_admission_is_open_whenever_the_learner_would_wait_for_ever(
    schedule: Schedule, steps: bytes
) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        world.step(action, pick)
        all_committed = world.committed == len(world.batches)
        nothing_to_publish = world.committed - world.published < schedule.publish_every
        too_few = len(world.ready()) < schedule.batch_groups
        if all_committed and nothing_to_publish and too_few and not world.running():
            assert may_admit(world.ledger) > 0


@MANY
@given(schedules(), STEPS)
def test_law_5_from_any_state_the_next_batch_can_be_formed(
    schedule: Schedule, steps: bytes
) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        world.step(action, pick)
    formed = len(world.batches)
    world.request(0)
    for _ in range(4 * (schedule.max_mean_lag + 2) * schedule.batch_groups):
        world.acknowledge(0)
        world.start_publish(0)
        world.commit(0)
        world.admit(0)
        world.finish(8)  # also a straggler, with rewards that differ
    assert len(world.batches) > formed


@MANY
@given(schedules(), STEPS)
def test_law_6_groups_are_whole_and_used_at_most_once(schedule: Schedule, steps: bytes) -> None:
    world = world_of(schedule)
    for action, pick in pairs(steps):
        world.step(action, pick)
    used = [index for batch in world.batches for index in batch]
    assert all(len(batch) == schedule.batch_groups for batch in world.batches)
    assert len(used) == len(set(used))
    assert set(used) <= set(world.oldest)  # each of them ended well
    assert not set(used) & set(world.gone)
