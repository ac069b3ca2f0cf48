"""One task of a run that looks after the deadlines of all calls.

Invariant: what is watched is told exactly when its deadline comes, and at no other time. A cancel
scope could do that too, but to move its deadline takes longer than all else that is done for a
call, and most deadlines are only moved: an entry here stays at the first one that was
asked for, and is put off when it comes up.
"""

import heapq
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import trio

_FEW = 32  # entries that are not worth a look for old ones


class Watched(Protocol):
    """Something with a deadline, which may move at any time.

    Attributes:
      deadline: in seconds of trio's clock; infinite for none.
      looked_after: when it is looked at next, or infinite; belongs to this module.
    """

    deadline: float
    looked_after: float

    def expire(self) -> None:
        """Note that the deadline has come."""
        ...


class Deadlines:
    """The deadlines of one run of trio; `run` is to be running."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Watched]] = []
        self._numbers = itertools.count()
        self._alarm = trio.CancelScope()
        self._alarm_at = math.inf
        self._enough = _FEW

    def __len__(self) -> int:
        """How many entries there are, those of what has ended included."""
        return len(self._entries)

    def watch(self, watched: Watched) -> None:
        """Look after a deadline. To be called when it comes before `looked_after`."""
        watched.looked_after = watched.deadline
        heapq.heappush(self._entries, (watched.deadline, next(self._numbers), watched))
        if len(self._entries) > self._enough:
            self._forget_the_ended()
        if watched.deadline < self._alarm_at:
            self._alarm.deadline = self._alarm_at = watched.deadline

    async def run(self) -> None:
        """Tell each one when its deadline comes, for ever."""
        while True:
            self._alarm_at = self._entries[0][0] if self._entries else math.inf
            with trio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await trio.sleep_forever()
            self._look(trio.current_time())

    def _look(self, now: float) -> None:
        while self._entries and self._entries[0][0] <= now:
            at, _, watched = heapq.heappop(self._entries)
            if watched.looked_after != at:
                continue  # an earlier entry has taken the place of this one
            watched.looked_after = math.inf
            if watched.deadline <= now:
                watched.expire()
            elif watched.deadline < math.inf:
                self.watch(watched)

    def _forget_the_ended(self) -> None:
        """Drop entries without use, so rarely that each one pays for a few others only."""
        kept = []
        for entry in self._entries:
            at, _, watched = entry
            if watched.looked_after == at and watched.deadline < math.inf:
                kept.append(entry)
            elif watched.looked_after == at:
                watched.looked_after = math.inf
        heapq.heapify(kept)
        self._entries = kept
        self._enough = 2 * len(kept) + _FEW


_OF_RUN: trio.lowlevel.RunVar[Deadlines] = trio.lowlevel.RunVar("deadlines")


def of_this_run() -> Deadlines:
    """Return the deadlines of the present run of trio, which look after themselves."""
    try:
        return _OF_RUN.get()
    except LookupError:
        deadlines = Deadlines()
        _OF_RUN.set(deadlines)
        trio.lowlevel.spawn_system_task(deadlines.run)
        return deadlines


@dataclass(slots=True)
class _Limit:
    """The deadline of one scope."""

    scope: trio.CancelScope
    deadline: float
    looked_after: float = math.inf

    def expire(self) -> None:
        """Cancel it."""
        self.scope.cancel()


@contextmanager
def move_on_after(seconds: float) -> Iterator[trio.CancelScope]:
    """Do as `trio.move_on_after`, without a deadline of trio's.

    Trio keeps a thousand of those that are over, and their scopes with them.
    """
    with trio.CancelScope() as scope:
        limit = _Limit(scope, trio.current_time() + seconds)
        if seconds < math.inf:
            of_this_run().watch(limit)
        try:
            yield scope
        finally:
            limit.deadline = math.inf
