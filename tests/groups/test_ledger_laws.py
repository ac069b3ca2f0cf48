"""Laws 3 to 6 for arbitrary sequences of events, against a world that only watches."""

import itertools

from hypothesis import given, settings

from headrace.pipeline.groups.ledger import Abandoned, counts, is_stuck, may_admit, oldest_needed
from tests.groups.world import STEPS, World, pairs, worlds

MANY = settings(max_examples=40)


def lockstep_lag(batch: int, world: World) -> int:
    """The lag of a batch: from the first publish whose batches reach up to it."""
    schedule = world.schedule
    multiples = itertools.count(0, schedule.publish_every)
    return batch - next(v for v in multiples if v + schedule.max_mean_lag >= batch)


@MANY
@given(worlds(), STEPS)
def test_law_3_conservation(world: World, steps: bytes) -> None:
    for action, pick in pairs(steps):
        world.step(action, pick)
        seen = counts(world.ledger)
        assert seen.admitted == len(world.task_of)
        assert seen.running == len(world.running())
        assert seen.ready == len(world.ready())
        assert seen.consumed == sum(map(len, world.batches[: world.committed]))
        assert seen.in_batch == sum(map(len, world.batches[world.committed :]))
        assert sum(seen.dropped.values()) == len(world.gone)
        dropped = sum(seen.dropped.values())
        assert seen.admitted == (
            seen.running + seen.ready + seen.in_batch + seen.consumed + dropped
        )
    world.tell(Abandoned())
    assert world.running() == world.ready() == []


@MANY
@given(worlds(), STEPS)
def test_law_3_each_member_of_a_running_group_runs_is_done_or_is_lost(
    world: World, steps: bytes
) -> None:
    for action, pick in pairs(steps):
        world.step(action, pick)
        for group in world.ledger.running:
            members = group.members
            assert members.running == len(world.attempts[group.index]) > 0
            assert len(members.done) == len(world.versions[group.index])
            assert members.lost == world.lost[group.index]
            assert members.running + len(members.done) + members.lost == world.rule.size


@MANY
@given(worlds(), STEPS)
def test_law_3_each_task_is_consumed_or_given_up_once(world: World, steps: bytes) -> None:
    world.run(steps)
    world.tell(Abandoned())
    ends = [world.task_of[index][0] for index in [*world.used(), *world.gone]]
    for index in world.reissued:  # not the end of its task: it was given out again
        ends.remove(world.task_of[index][0])
    ends += [task_id for task_id, _ in world.waiting_tasks]  # to be admitted again
    assert sorted(ends) == sorted(f"task-{number}" for number in range(world.new_tasks))
    for index, reason in world.gone.items():
        last = world.task_of[index][1] == world.schedule.max_reissues
        may_return = reason == "over_age" or (
            reason == "cancelled" and not world.schedule.deterministic
        )
        assert (index in world.reissued) == (may_return and not last)


@MANY
@given(worlds(deterministic=False), STEPS)
def test_law_4_mean_lag_and_lag_are_bounded(world: World, steps: bytes) -> None:
    world.run(steps)
    schedule, total, counted = world.schedule, 0, [0]
    for number, batch in enumerate(world.batches):
        lags = [number - world.oldest(index) for index in batch]
        total += sum(lags)
        # The mean over the first D = number + 1 batches, in the strong form of the theorem. It
        # holds with masks too, for the lags as they are.
        assert total <= number * schedule.max_mean_lag * schedule.batch_groups
        if schedule.over_age == "mask":
            assert all(number - world.newest(index) <= schedule.max_lag for index in batch)
            lags = [min(lag, schedule.max_lag) for lag in lags]
        assert all(0 <= lag <= schedule.max_lag for lag in lags)
        counted += lags
    seen = counts(world.ledger)
    assert (seen.lag_sum, seen.lag_max) == (sum(counted), max(counted))


@MANY
@given(worlds(deterministic=True), STEPS)
def test_law_4_lockstep_has_exact_lags_and_the_order_of_admission(
    world: World, steps: bytes
) -> None:
    world.run(steps)
    schedule, lags = world.schedule, []
    for number, batch in enumerate(world.batches):
        places = range(number * schedule.batch_groups, (number + 1) * schedule.batch_groups)
        assert batch == tuple(index for index in places if index not in world.gone)
        lag = lockstep_lag(number, world)
        assert lag <= schedule.max_mean_lag
        for index in batch:
            assert {number - lag} == {v for pair in world.versions[index].values() for v in pair}
            lags.append(lag)
    assert counts(world.ledger).lag_sum == sum(lags)
    assert set(world.gone.values()) <= {"env_error", "cancelled"}  # nothing for its age
    # Each group has the task that is next in the stream, whatever became of the others.
    assert [task for task, _ in world.task_of.values()] == [
        f"task-{number}" for number in range(len(world.task_of))
    ]


@MANY
@given(worlds(deterministic=True), STEPS)
def test_law_4_lockstep_needs_few_versions_and_only_such_as_it_says(
    world: World, steps: bytes
) -> None:
    schedule = world.schedule
    for action, pick in pairs(steps):
        needed = oldest_needed(world.ledger)
        running = set(world.running())
        world.step(action, pick)
        assert oldest_needed(world.ledger) >= needed  # what is released isn't asked for again
        for index in running | set(world.running()):
            assert world.started_under[index] >= needed
        held = range(oldest_needed(world.ledger), world.published + 1)
        held = [version for version in held if version % schedule.publish_every == 0]
        assert len(held) <= schedule.max_mean_lag // schedule.publish_every + 1
        outstanding = len(world.running()) + len(world.ready())
        assert outstanding <= (schedule.max_mean_lag + 1) * schedule.batch_groups


@MANY
@given(worlds(deterministic=False), STEPS)
def test_law_4_over_age_groups_are_removed_at_once_and_no_others(
    world: World, steps: bytes
) -> None:
    masked = world.schedule.over_age == "mask"
    most = world.schedule.max_lag
    for action, pick in pairs(steps):
        before = set(world.gone)
        world.step(action, pick)
        formed = len(world.batches)
        for index in [] if masked else world.running():
            assert formed - world.started_under[index] <= most
        for index in world.ready():
            version = world.newest(index) if masked else world.oldest(index)
            assert formed - version <= most
        for index in set(world.gone) - before:
            if world.gone[index] == "over_age":
                ended = not world.attempts[index]
                assert ended or not masked  # a running group isn't touched
                version = world.newest(index) if masked else world.started_under[index]
                if ended and not masked:
                    version = world.oldest(index)
                assert formed - version == most + 1 or (masked and formed - version > most)


@MANY
@given(worlds(), STEPS)
def test_law_5_admission_is_open_whenever_the_learner_would_wait_for_ever(
    world: World, steps: bytes
) -> None:
    schedule = world.schedule
    for action, pick in pairs(steps):
        world.step(action, pick)
        assert not is_stuck(world.ledger)
        all_committed = world.committed == len(world.batches)
        every = schedule.publish_every
        all_published = world.committed // every * every <= world.published
        if all_committed and all_published and not world.running():
            end = (len(world.batches) + 1) * schedule.batch_groups
            complete = len(world.ready()) >= schedule.batch_groups
            if schedule.deterministic:
                complete = len(world.task_of) >= end
            assert complete or may_admit(world.ledger) > 0


@MANY
@given(worlds(), STEPS)
def test_law_5_from_any_state_the_next_batch_can_be_formed(world: World, steps: bytes) -> None:
    world.run(steps)
    schedule, formed = world.schedule, len(world.batches)
    world.request(0)
    for _ in range(4 * (schedule.max_mean_lag + 2) * schedule.batch_groups):
        world.acknowledge(0)
        world.start_publish(0)
        world.commit(0)
        world.admit(0)
        world.finish(8)  # also a straggler, with rewards that differ
    assert len(world.batches) > formed


@MANY
@given(worlds(), STEPS)
def test_law_6_groups_are_whole_and_used_at_most_once(world: World, steps: bytes) -> None:
    world.run(steps)
    used = [index for batch in world.batches for index in batch]
    assert len(used) == len(world.used())
    assert not world.used() & set(world.gone)
    for batch in world.batches:
        full = len(batch) == world.schedule.batch_groups
        assert full or world.schedule.deterministic  # which leaves the places of failures empty
    rule = world.rule
    least = rule.min_size if rule.failure == "survivors" else rule.size
    for index in world.used():
        assert world.collected[index] == tuple(sorted(world.versions[index]))
        assert not world.attempts[index]  # all its members have ended
        assert len(world.collected[index]) == rule.size - world.lost[index] >= least


@MANY
@given(worlds(deterministic=True), STEPS, STEPS)
def test_law_17_lockstep_batches_do_not_depend_on_timing(
    world: World, steps: bytes, others: bytes
) -> None:
    """Where nothing fails; groups are admitted and end in another order, with other restarts."""
    other = World(world.schedule, world.rule, world.ledger, faults=False)
    world.faults = False
    world.run(steps)
    other.run(others)
    common = min(len(world.batches), len(other.batches))
    assert world.batches[:common] == other.batches[:common]
    for index in {index for batch in world.batches[:common] for index in batch}:
        assert world.task_of[index] == other.task_of[index]
        assert world.versions[index] == other.versions[index]
