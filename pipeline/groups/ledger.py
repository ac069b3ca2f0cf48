"""The ledger of groups: a pure state machine, `(ledger, event) -> (ledger, decisions)`.

It says what may be admitted, when a batch is formed and of which groups, and which groups have
become too old. It owns no task, clock or queue: the controller reports events, in the order in
which they happen, and carries the decisions out. After every event

  admitted = running + ready + in_batch + consumed + dropped,

each group is in exactly one of these places, and the bounds of `policy_version` hold for every
batch formed.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import assert_never

from . import policy_version
from .events import (
    Abandoned,
    Admitted,
    BatchRequested,
    Cancel,
    Committed,
    Decision,
    Decisions,
    Drop,
    Event,
    FormBatch,
    GroupFailed,
    GroupReady,
    Published,
    Reissue,
)
from .ordered import Ordered
from .schedule import Schedule

__all__ = [
    "EQUAL_REWARDS",
    "OVER_AGE",
    "RUN_ENDED",
    "Abandoned",
    "Admitted",
    "BatchRequested",
    "Cancel",
    "Committed",
    "Counts",
    "Decision",
    "Decisions",
    "Drop",
    "Event",
    "FormBatch",
    "Group",
    "GroupFailed",
    "GroupReady",
    "Ledger",
    "Published",
    "Reissue",
    "Schedule",
    "advance",
    "counts",
    "may_admit",
    "publish_due",
]

OVER_AGE = "over_age"
EQUAL_REWARDS = "equal_rewards"
RUN_ENDED = "run_ended"


@dataclass(frozen=True, slots=True)
class Group:
    """One outstanding group.

    Attributes:
      version: W, the oldest version in a ready group; for a running one the version
        published at its admission, a lower bound of W.
    """

    index: int
    task_id: str
    attempt: int
    version: int


_NONE_RUNNING: Ordered[Group] = Ordered(attrgetter("index"))
_NONE_READY: Ordered[Group] = Ordered(attrgetter("version", "index"))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state.

    Attributes:
      admitted: groups ever admitted.
      formed: d, batches formed so far.
      committed: v, updates committed.
      published: p, the version acknowledged by the sampler.
      running: by index, hence also by version.
      ready: by version, then by index.
      dropped: groups dropped or cancelled, by reason.
      reissued: how many of those had their task given out again.
      ignored: events about groups no longer running, and outdated publishes.
      lag_sum: sum of the lags, in versions, of all groups in formed batches.
      lag_max: the largest of these lags.
      learner_waits: a batch is requested and not yet formed.
      ended: the run was abandoned.
    """

    schedule: Schedule
    admitted: int = 0
    formed: int = 0
    committed: int = 0
    published: int = 0
    running: Ordered[Group] = _NONE_RUNNING
    ready: Ordered[Group] = _NONE_READY
    dropped: Mapping[str, int] = field(default_factory=dict)
    reissued: int = 0
    ignored: int = 0
    lag_sum: int = 0
    lag_max: int = 0
    learner_waits: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Counts:
    """A summary of a ledger, in groups; lags in versions, over the groups in formed batches."""

    admitted: int
    running: int
    ready: int
    in_batch: int
    consumed: int
    dropped: Mapping[str, int]
    reissued: int
    ignored: int
    lag_sum: int
    lag_max: int

    @property
    def lag_mean(self) -> float:
        """The mean lag in versions; 0 before the first batch."""
        return self.lag_sum / max(1, self.in_batch + self.consumed)


def counts(ledger: Ledger) -> Counts:
    """Return the ledger's summary."""
    size = ledger.schedule.batch_groups
    return Counts(
        admitted=ledger.admitted,
        running=len(ledger.running),
        ready=len(ledger.ready),
        in_batch=(ledger.formed - ledger.committed) * size,
        consumed=ledger.committed * size,
        dropped=dict(ledger.dropped),
        reissued=ledger.reissued,
        ignored=ledger.ignored,
        lag_sum=ledger.lag_sum,
        lag_max=ledger.lag_max,
    )


def may_admit(ledger: Ledger) -> int:
    """Return how many groups may be admitted now; 0 once the run is abandoned."""
    if ledger.ended:
        return 0
    return policy_version.admissible(
        len(ledger.running) + len(ledger.ready),
        ledger.published,
        ledger.formed,
        max_mean_lag=ledger.schedule.max_mean_lag,
        batch_groups=ledger.schedule.batch_groups,
    )


def publish_due(ledger: Ledger) -> int | None:
    """Return the version that should be published now, or None."""
    target = policy_version.publish_target(ledger.committed, ledger.schedule.publish_every)
    return target if target > ledger.published else None


def advance(ledger: Ledger, event: Event) -> tuple[Ledger, Decisions]:
    """Apply one event; return the next ledger and what the controller must do, in order.

    Late events are not errors: the result of a cancelled group, a duplicate, an outdated
    publish are ignored and counted.

    Raises:
      ValueError: where the caller breaks the protocol: admits when `may_admit` is 0, commits
        a batch out of order, reports a version that cannot be.

    Example:
      >>> ledger = Ledger(Schedule(batch_groups=1))
      >>> ledger, _ = advance(ledger, Admitted("task-7"))
      >>> ledger, _ = advance(ledger, GroupReady(0, oldest_version=0))
      >>> advance(ledger, BatchRequested())[1]
      (FormBatch(batch=0, indexes=(0,)),)
    """
    ledger, decisions = _apply(ledger, event)
    if ledger.learner_waits and len(ledger.ready) >= ledger.schedule.batch_groups:
        ledger, formation = _form_batch(ledger)
        decisions += formation
    _assert_conserved(ledger)
    return ledger, decisions


def _apply(ledger: Ledger, event: Event) -> tuple[Ledger, Decisions]:
    match event:
        case Admitted():
            return _admit(ledger, event), ()
        case GroupReady():
            return _group_ready(ledger, event)
        case GroupFailed():
            return _group_failed(ledger, event)
        case BatchRequested():
            return dataclasses.replace(ledger, learner_waits=not ledger.ended), ()
        case Committed():
            return _commit(ledger, event.batch), ()
        case Published():
            return _publish(ledger, event.version), ()
        case Abandoned():
            return _abandon(ledger)
        case _:
            assert_never(event)


def _admit(ledger: Ledger, event: Admitted) -> Ledger:
    if may_admit(ledger) < 1:
        raise ValueError(
            f"task {event.task_id!r} admitted against the schedule; ask may_admit first"
        )
    group = Group(ledger.admitted, event.task_id, event.attempt, ledger.published)
    return dataclasses.replace(
        ledger, admitted=ledger.admitted + 1, running=ledger.running.add(group)
    )


def _group_ready(ledger: Ledger, event: GroupReady) -> tuple[Ledger, Decisions]:
    group, running = ledger.running.remove(event.index)
    if group is None:
        return _ignored(ledger), ()
    if not group.version <= event.oldest_version <= ledger.committed:
        raise ValueError(
            f"group {event.index} reports version {event.oldest_version}; it was admitted at "
            f"version {group.version} and the learner is at {ledger.committed}"
        )
    if not event.useful and ledger.schedule.equal_rewards == "drop":
        return _drop(ledger, running, Drop(event.index, EQUAL_REWARDS))
    group = dataclasses.replace(group, version=event.oldest_version)
    return dataclasses.replace(ledger, running=running, ready=ledger.ready.add(group)), ()


def _group_failed(ledger: Ledger, event: GroupFailed) -> tuple[Ledger, Decisions]:
    group, running = ledger.running.remove(event.index)
    if group is None:
        return _ignored(ledger), ()
    return _drop(ledger, running, Drop(event.index, event.reason))


def _drop(ledger: Ledger, running: Ordered[Group], drop: Drop) -> tuple[Ledger, Decisions]:
    dropped = _add(ledger.dropped, drop.reason, 1)
    return dataclasses.replace(ledger, running=running, dropped=dropped), (drop,)


def _ignored(ledger: Ledger) -> Ledger:
    return dataclasses.replace(ledger, ignored=ledger.ignored + 1)


def _commit(ledger: Ledger, batch: int) -> Ledger:
    if not ledger.committed == batch < ledger.formed:
        raise ValueError(
            f"batch {batch} committed; expected {ledger.committed}, formed are {ledger.formed}"
        )
    return dataclasses.replace(ledger, committed=batch + 1)


def _publish(ledger: Ledger, version: int) -> Ledger:
    if version > ledger.committed:
        raise ValueError(f"version {version} published, but only {ledger.committed} committed")
    if version <= ledger.published:
        return _ignored(ledger)
    return dataclasses.replace(ledger, published=version)


def _abandon(ledger: Ledger) -> tuple[Ledger, Decisions]:
    ledger, decisions = _remove_oldest(ledger, len(ledger.running), len(ledger.ready), RUN_ENDED)
    return dataclasses.replace(ledger, learner_waits=False, ended=True), decisions


def _form_batch(ledger: Ledger) -> tuple[Ledger, Decisions]:
    number = ledger.formed
    taken, ready = ledger.ready.split(ledger.schedule.batch_groups)
    lags = [policy_version.lag(group.version, number) for group in taken]
    ledger = dataclasses.replace(
        ledger,
        formed=number + 1,
        ready=ready,
        lag_sum=ledger.lag_sum + sum(lags),
        lag_max=max(ledger.lag_max, *lags),
        learner_waits=False,
    )
    ledger, expired = _expire(ledger)
    return ledger, (FormBatch(number, tuple(group.index for group in taken)), *expired)


def _expire(ledger: Ledger) -> tuple[Ledger, Decisions]:
    """Remove the groups that are too old for every batch to come, and give their tasks back."""
    running, ready = _over_age(ledger, ledger.running), _over_age(ledger, ledger.ready)
    reissues = tuple(
        Reissue(group.task_id, group.attempt + 1)
        for group in (*running, *ready)
        if group.attempt < ledger.schedule.max_reissues
    )
    ledger, decisions = _remove_oldest(ledger, len(running), len(ready), OVER_AGE)
    ledger = dataclasses.replace(ledger, reissued=ledger.reissued + len(reissues))
    return ledger, (*decisions, *reissues)


def _over_age(ledger: Ledger, groups: Ordered[Group]) -> tuple[Group, ...]:
    """The groups that are too old; both sequences start with them."""

    def too_old(group: Group) -> bool:
        return policy_version.over_age(group.version, ledger.formed, ledger.schedule.max_lag)

    return tuple(itertools.takewhile(too_old, groups))


def _remove_oldest(
    ledger: Ledger, running: int, ready: int, reason: str
) -> tuple[Ledger, Decisions]:
    """Cancel the first `running` running groups and drop the first `ready` ready ones."""
    cancelled, still_running = ledger.running.split(running)
    dropped, still_ready = ledger.ready.split(ready)
    ledger = dataclasses.replace(
        ledger,
        running=still_running,
        ready=still_ready,
        dropped=_add(ledger.dropped, reason, running + ready),
    )
    cancels = tuple(Cancel(group.index, reason) for group in cancelled)
    return ledger, (*cancels, *(Drop(group.index, reason) for group in dropped))


def _add(dropped: Mapping[str, int], reason: str, number: int) -> Mapping[str, int]:
    return {**dropped, reason: dropped.get(reason, 0) + number} if number else dropped


def _assert_conserved(ledger: Ledger) -> None:
    in_batch_or_consumed = ledger.formed * ledger.schedule.batch_groups
    outstanding = len(ledger.running) + len(ledger.ready)
    dropped = sum(ledger.dropped.values())
    assert ledger.admitted == outstanding + in_batch_or_consumed + dropped, counts(ledger)
