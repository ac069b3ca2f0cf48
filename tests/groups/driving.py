"""Shorthands for driving a ledger by hand."""

import json
from collections.abc import Iterator

from headrace.pipeline.groups.ledger import (
    Admitted,
    Decision,
    Event,
    Issue,
    Ledger,
    MemberDone,
    advance,
    may_admit,
)
from headrace.pipeline.groups.saved import ledger_from, ledger_table


def feed(ledger: Ledger, *events: Event) -> tuple[Ledger, list[Decision]]:
    """Apply events; return all decisions."""
    decisions: list[Decision] = []
    for event in events:
        ledger, more = advance(ledger, event)
        decisions += more
    return ledger, decisions


def written_and_read(ledger: Ledger) -> Ledger:
    """Return what a checkpoint makes of a ledger."""
    table = json.loads(json.dumps(ledger_table(ledger)))
    return ledger_from(table, ledger.schedule, ledger.rule)


def admit_all(ledger: Ledger) -> Ledger:
    """Admit new tasks until the gate closes."""
    numbers = range(ledger.admitted, ledger.admitted + may_admit(ledger))
    return advance(ledger, admitted(*[f"task-{number}" for number in numbers]))[0]


def admitted(*task_ids: str, attempt: int = 0) -> Admitted:
    """Make the event."""
    return Admitted(tuple([Issue(task_id, attempt) for task_id in task_ids]))


def done(
    index: int,
    oldest: int = 0,
    newest: int | None = None,
    *,
    member: int = 0,
    attempt: int = 0,
    reward: float = 1.0,
) -> MemberDone:
    """A member that ended well, by default sampled under one version."""
    newest = oldest if newest is None else newest
    return MemberDone(index, member, attempt, oldest, newest, reward)


def all_done(ledger: Ledger, *, but: tuple[int, ...] = ()) -> Iterator[Event]:
    """The ends of all running groups of one member, sampled wholly under their first version."""
    for group in ledger.running:
        if group.index not in but:
            yield done(group.index, group.version)
