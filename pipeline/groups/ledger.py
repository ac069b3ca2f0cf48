"""The ledger of groups: a pure state machine, `(ledger, event) -> (ledger, decisions)`.

It says what may be admitted, what becomes of a group whose members fail, when a batch is formed
and of which groups, and which groups have become too old. It owns no task, clock or queue: the
controller reports events, in the order in which they happen, and carries the decisions out.
After every event

  admitted = running + ready + in_batch + consumed + dropped,

each group is in exactly one of these places, so is each member of a group (`members`), and the
bounds of `policy_version` hold for every batch formed.
"""

import itertools
from bisect import bisect
from typing import assert_never

from . import drops, members, policy_version
from .events import (
    CANCELLED,
    EQUAL_REWARDS,
    OVER_AGE,
    RUN_ENDED,
    Abandoned,
    Admitted,
    BatchRequested,
    Cancelled,
    Collect,
    Committed,
    Decision,
    Decisions,
    Drop,
    Event,
    FormBatch,
    Issue,
    MemberDone,
    MemberFailed,
    Published,
    Reissue,
    Restart,
    Resumed,
    Retry,
)
from .members import MemberRule, Members
from .schedule import Schedule
from .state import (
    Counts,
    Group,
    Ledger,
    counts,
    is_conserved,
    is_stuck,
    may_admit,
    oldest_needed,
    publish_due,
    resumed_version,
    sampled_version,
)

__all__ = [
    "CANCELLED",
    "EQUAL_REWARDS",
    "OVER_AGE",
    "RUN_ENDED",
    "Abandoned",
    "Admitted",
    "BatchRequested",
    "Cancelled",
    "Collect",
    "Committed",
    "Counts",
    "Decision",
    "Decisions",
    "Drop",
    "Event",
    "FormBatch",
    "Group",
    "Issue",
    "Ledger",
    "MemberDone",
    "MemberFailed",
    "MemberRule",
    "Published",
    "Reissue",
    "Restart",
    "Resumed",
    "Retry",
    "Schedule",
    "advance",
    "counts",
    "is_stuck",
    "may_admit",
    "oldest_needed",
    "publish_due",
    "resumed_version",
    "sampled_version",
]


def advance(ledger: Ledger, event: Event) -> tuple[Ledger, Decisions]:
    """Apply one event; return the next ledger and what the controller must do, in order.

    Late events are not errors. What is reported of a group that doesn't run, of a member that
    has ended, or of another try than the present one is ignored and counted, and so is an
    outdated publish.

    Raises:
      ValueError: where the caller breaks the protocol: admits more than `may_admit`, commits a
        batch out of order, reports a version or a member that cannot be.

    Example:
      >>> ledger = Ledger(Schedule(batch_groups=1), MemberRule(size=2))
      >>> ledger, _ = advance(ledger, Admitted((Issue("task-7"),)))
      >>> ledger, _ = advance(ledger, MemberDone(0, 0, 0, 0, 0, reward=1.0))
      >>> ledger, decisions = advance(ledger, MemberFailed(0, 1, 0, "env_error"))
      >>> decisions
      (Retry(index=0, member=1, attempt=1),)
      >>> ledger, decisions = advance(ledger, MemberDone(0, 1, 1, 0, 0, reward=0.0))
      >>> decisions
      (Collect(index=0, members=(0, 1)),)
      >>> advance(ledger, BatchRequested())[1]
      (FormBatch(batch=0, indexes=(0,)),)
    """
    ledger, decisions = _apply(ledger, event)
    if ledger.learner_waits and _batch_is_complete(ledger):
        ledger, formation = _form_batch(ledger)
        decisions += formation
    assert is_conserved(ledger), counts(ledger)
    return ledger, decisions


def _apply(ledger: Ledger, event: Event) -> tuple[Ledger, Decisions]:
    match event:
        case MemberDone() | MemberFailed():
            return _member_ended(ledger, event)
        case Admitted():
            return _admit(ledger, event), ()
        case BatchRequested():
            return ledger._replace(learner_waits=not ledger.ended), ()
        case Committed():
            return _commit(ledger, event.batch), ()
        case Published():
            return _publish(ledger, event.version), ()
        case Cancelled():
            return _cancel(ledger, event.index)
        case Resumed():
            return _resume(ledger, event.version)
        case Abandoned():
            return drops.abandon(ledger)
        case _:
            assert_never(event)


# Groups and their members ------------------------------------------------------------------


def _admit(ledger: Ledger, event: Admitted) -> Ledger:
    count, room, first = len(event.issues), may_admit(ledger), ledger.admitted
    if count > room:
        raise ValueError(
            f"{count} groups admitted against the schedule, which allows {room}; ask may_admit"
        )
    groups = [_start(ledger, first + place, issue) for place, issue in enumerate(event.issues)]
    return ledger.with_groups(first + count, ledger.running.add(first, *groups), ledger.ready)


def _start(ledger: Ledger, index: int, issue: Issue) -> Group:
    pinned = sampled_version(ledger, index)
    version = ledger.published if pinned is None else pinned
    return Group(version, index, issue.task_id, issue.attempt, ledger.rule.start)


def _member_ended(ledger: Ledger, event: MemberDone | MemberFailed) -> tuple[Ledger, Decisions]:
    group = ledger.running.get(event.index)
    if group is None or members.is_late(group.members, event.member, event.attempt):
        return _ignored(ledger), ()
    if isinstance(event, MemberFailed):
        return _member_failed(ledger, group, event)
    _check_versions(ledger, group, event)
    return _go_on(ledger, group, members.succeed(group.members, event))


def _member_failed(ledger: Ledger, group: Group, event: MemberFailed) -> tuple[Ledger, Decisions]:
    after = members.fail(group.members, event.member, ledger.rule)
    if after.lost > ledger.rule.expendable:
        return drops.drop(ledger, [group], event.reason)
    ledger, decisions = _go_on(ledger, group, after)
    if after.lost == group.members.lost:
        decisions += (Retry(group.index, event.member, event.attempt + 1),)
    return ledger, decisions


def _go_on(ledger: Ledger, group: Group, after: Members) -> tuple[Ledger, Decisions]:
    """Record a group's members; once all have ended, the group is ready or useless."""
    left = after.running
    assert ledger.rule.size == left + len(after.done) + after.lost, after
    if left:
        running = ledger.running.replace(group.index, group._replace(members=after))
        return ledger.with_groups(ledger.admitted, running, ledger.ready), ()
    if ledger.schedule.equal_rewards == "drop" and after.equal_rewards:
        return drops.drop(ledger, [group], EQUAL_REWARDS)
    if ledger.schedule.over_age == "mask" and drops.is_over_age(ledger, after.newest_version):
        return drops.drop_and_reissue(ledger, [group], OVER_AGE)
    ready = Group(after.oldest_version, group.index, group.task_id, group.attempt, after)
    place = bisect(ledger.ready, ready)
    ledger = ledger.with_groups(
        ledger.admitted,
        ledger.running.remove(group.index),
        (*ledger.ready[:place], ready, *ledger.ready[place:]),
    )
    return ledger, (Collect(group.index, after.places),)


def _check_versions(ledger: Ledger, group: Group, event: MemberDone) -> None:
    oldest, newest = event.oldest_version, event.newest_version
    last = group.version if ledger.schedule.deterministic else ledger.committed
    if not group.version <= oldest <= newest <= last:
        raise ValueError(
            f"member {event.member} of group {group.index} reports versions {oldest} to "
            f"{newest}; possible are {group.version} to {last}"
        )


def _cancel(ledger: Ledger, index: int) -> tuple[Ledger, Decisions]:
    group = ledger.running.get(index)
    return (_ignored(ledger), ()) if group is None else drops.cancel(ledger, group)


def _ignored(ledger: Ledger) -> Ledger:
    return ledger._replace(ignored=ledger.ignored + 1)


# Versions ----------------------------------------------------------------------------------


def _commit(ledger: Ledger, batch: int) -> Ledger:
    if not ledger.committed == batch < ledger.formed:
        raise ValueError(
            f"batch {batch} committed; expected {ledger.committed}, formed are {ledger.formed}"
        )
    return ledger._replace(
        committed=batch + 1,
        in_batch=ledger.in_batch[1:],
        consumed=ledger.consumed + ledger.in_batch[0],
    )


def _publish(ledger: Ledger, version: int) -> Ledger:
    if version > ledger.committed:
        raise ValueError(f"version {version} published, but only {ledger.committed} committed")
    if version <= ledger.published:
        return _ignored(ledger)
    wanted = policy_version.next_publish(ledger.published, ledger.schedule.publish_every)
    if ledger.schedule.deterministic and version > wanted:
        raise ValueError(
            f"version {version} published before version {wanted}, which some groups of the "
            "lockstep schedule are sampled with; publish each version that is due"
        )
    return ledger._replace(published=version)


def _resume(ledger: Ledger, version: int) -> tuple[Ledger, Decisions]:
    """Restart what was running; all its members begin again, under the version now in use."""
    wanted = resumed_version(ledger)
    if ledger.ended or ledger.in_batch or version != wanted:
        raise ValueError(
            f"a run resumes with no batch under way and version {wanted}; got version {version}, "
            f"{len(ledger.in_batch)} batches formed and not committed, ended: {ledger.ended}"
        )
    ledger = ledger._replace(published=version, learner_waits=False)
    running = ledger.running
    for group in running:
        anew = _start(ledger, group.index, Issue(group.task_id, group.attempt))
        running = running.replace(anew.index, anew)
    restarts = tuple(Restart(group.index, group.task_id, group.attempt) for group in running)
    return ledger._replace(running=running), restarts


# Batches -----------------------------------------------------------------------------------


def _batch_is_complete(ledger: Ledger) -> bool:
    if not ledger.schedule.deterministic:
        return len(ledger.ready) >= ledger.schedule.batch_groups
    end = _lockstep_end(ledger)
    first = ledger.running.first
    return ledger.admitted >= end and (first is None or first.index >= end)


def _lockstep_end(ledger: Ledger) -> int:
    """The index after the last place of the batch to be formed next."""
    return (ledger.formed + 1) * ledger.schedule.batch_groups


def _form_batch(ledger: Ledger) -> tuple[Ledger, Decisions]:
    number = ledger.formed
    count = _groups_to_take(ledger)
    taken, ready = ledger.ready[:count], ledger.ready[count:]
    # Where older tokens are masked, the lag counts that the oldest trained one may have.
    most = ledger.schedule.max_lag if ledger.schedule.over_age == "mask" else number
    lags = [min(policy_version.lag(group.version, number), most) for group in taken]
    ledger = ledger._replace(
        ready=ready,
        in_batch=(*ledger.in_batch, len(taken)),
        lag_sum=ledger.lag_sum + sum(lags),
        lag_max=max(ledger.lag_max, *lags) if lags else ledger.lag_max,
        learner_waits=False,
    )
    ledger, expired = drops.expire(ledger)
    return ledger, (FormBatch(number, tuple(group.index for group in taken)), *expired)


def _groups_to_take(ledger: Ledger) -> int:
    if not ledger.schedule.deterministic:
        return ledger.schedule.batch_groups
    end = _lockstep_end(ledger)
    return sum(1 for _ in itertools.takewhile(lambda group: group.index < end, ledger.ready))
