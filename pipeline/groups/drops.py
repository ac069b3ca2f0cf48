"""How groups leave the ledger unused: too old, useless, failed, cancelled, or at the run's end.

Each one leaves with a reason. A task whose group was too old or cancelled is given out again, a
bounded number of times; in lockstep it isn't, as there each group has its task whatever became
of the others.
"""

import itertools
from collections.abc import Mapping, Sequence

from . import policy_version
from .events import CANCELLED, OVER_AGE, RUN_ENDED, Decisions, Drop, Reissue
from .state import Group, Ledger


def drop(ledger: Ledger, groups: Sequence[Group], reason: str) -> tuple[Ledger, Decisions]:
    """Remove outstanding groups, running or ready."""
    running = ledger.running
    for group in groups:
        if group.members.running:
            running = running.remove(group.index)
    gone = {group.index for group in groups}
    ready = tuple([group for group in ledger.ready if group.index not in gone])
    dropped = _add(ledger.dropped, reason, len(groups))
    ledger = ledger._replace(running=running, ready=ready, dropped=dropped)
    return ledger, tuple(Drop(group.index, reason) for group in groups)


def expire(ledger: Ledger) -> tuple[Ledger, Decisions]:
    """Remove the groups that have become too old for every batch to come."""
    groups = _over_age_groups(ledger)
    return drop_and_reissue(ledger, groups, OVER_AGE) if groups else (ledger, ())


def cancel(ledger: Ledger, group: Group) -> tuple[Ledger, Decisions]:
    """Remove a running group that somebody else has stopped."""
    if ledger.schedule.deterministic:
        return drop(ledger, [group], CANCELLED)
    return drop_and_reissue(ledger, [group], CANCELLED)


def abandon(ledger: Ledger) -> tuple[Ledger, Decisions]:
    """Remove all that is outstanding, and end."""
    ledger, drops = drop(ledger, [*ledger.running, *ledger.ready], RUN_ENDED)
    return ledger._replace(learner_waits=False, ended=True), drops


def drop_and_reissue(
    ledger: Ledger, groups: Sequence[Group], reason: str
) -> tuple[Ledger, Decisions]:
    """Remove groups through no fault of their own; give the tasks back that may try again."""
    ledger, drops = drop(ledger, groups, reason)
    reissues = tuple(
        Reissue(group.task_id, group.attempt + 1)
        for group in groups
        if group.attempt < ledger.schedule.max_reissues
    )
    return ledger._replace(reissued=ledger.reissued + len(reissues)), (*drops, *reissues)


def is_over_age(ledger: Ledger, version: int) -> bool:
    """Return whether a version is too old to be trained in the next batch or a later one."""
    return policy_version.over_age(version, ledger.formed, ledger.schedule.max_lag)


def _over_age_groups(ledger: Ledger) -> list[Group]:
    """The groups that are too old, running ones first. In lockstep there are never any."""

    def is_old(group: Group) -> bool:
        return is_over_age(ledger, group.version)

    ready = itertools.takewhile(is_old, ledger.ready)  # by version: these come first
    if ledger.schedule.over_age == "mask":
        return [group for group in ready if is_over_age(ledger, group.members.newest_version)]
    return [*itertools.takewhile(is_old, ledger.running), *ready]


def _add(dropped: Mapping[str, int], reason: str, number: int) -> Mapping[str, int]:
    return {**dropped, reason: dropped.get(reason, 0) + number} if number else dropped
