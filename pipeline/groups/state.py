"""What the ledger knows, and what follows from it at any time.

Each admitted group is in exactly one place:

  admitted = running + ready + in_batch + consumed + dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from . import policy_version
from .members import MemberRule, Members
from .numbered import Numbered
from .schedule import Schedule


class Group(NamedTuple):
    """One outstanding group. Groups sort by version, then by index.

    Attributes:
      version: W, the oldest version in a ready group; for a running one a lower bound of W:
        the version published at its start, or, in lockstep, the one that samples it.
      attempt: how often the task was given out before.
    """

    version: int
    index: int  # type: ignore[assignment]  # hides a method of tuples
    task_id: str
    attempt: int
    members: Members


_NONE_RUNNING: Numbered[Group] = Numbered()
_NONE_DROPPED: Mapping[str, int] = {}


class Ledger(NamedTuple):
    """The state. A named tuple, as changing one costs a fifth of what a dataclass takes.

    Attributes:
      admitted: groups ever admitted.
      running: by index, hence also by version.
      ready: sorted; in lockstep that is by index.
      committed: v, updates committed.
      published: p, the version acknowledged by the sampler.
      in_batch: groups in each batch that is formed and not yet committed.
      consumed: groups in the batches committed.
      dropped: groups dropped, by reason.
      reissued: how many of those had their task given out again.
      ignored: late results of members and groups, and outdated publishes.
      lag_sum: sum of the lags, in versions, of all groups in formed batches.
      lag_max: the largest of these lags.
      learner_waits: a batch is requested and not yet formed.
      ended: the run was abandoned.
    """

    schedule: Schedule
    rule: MemberRule = MemberRule()
    admitted: int = 0
    running: Numbered[Group] = _NONE_RUNNING
    ready: tuple[Group, ...] = ()
    committed: int = 0
    published: int = 0
    in_batch: tuple[int, ...] = ()
    consumed: int = 0
    dropped: Mapping[str, int] = _NONE_DROPPED
    reissued: int = 0
    ignored: int = 0
    lag_sum: int = 0
    lag_max: int = 0
    learner_waits: bool = False
    ended: bool = False

    @property
    def formed(self) -> int:
        """D, batches formed so far."""
        return self.committed + len(self.in_batch)

    def with_groups(
        self, admitted: int, running: Numbered[Group], ready: tuple[Group, ...]
    ) -> "Ledger":
        """Return the ledger with other groups; `_replace` takes thrice as long."""
        fields = self[:2] + (admitted, running, ready) + self[5:]  # noqa: RUF005 - much faster
        return tuple.__new__(Ledger, fields)


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
    return Counts(
        admitted=ledger.admitted,
        running=len(ledger.running),
        ready=len(ledger.ready),
        in_batch=sum(ledger.in_batch),
        consumed=ledger.consumed,
        dropped=dict(ledger.dropped),
        reissued=ledger.reissued,
        ignored=ledger.ignored,
        lag_sum=ledger.lag_sum,
        lag_max=ledger.lag_max,
    )


def is_conserved(ledger: Ledger) -> bool:
    """Return whether each admitted group is in exactly one place."""
    outstanding = ledger.running.size + len(ledger.ready)
    gone = sum(ledger.in_batch) + ledger.consumed + sum(ledger.dropped.values())
    return ledger.admitted == outstanding + gone


def may_admit(ledger: Ledger) -> int:
    """Return how many groups may be admitted now; 0 once the run is abandoned."""
    schedule = ledger.schedule
    if ledger.ended:
        return 0
    if schedule.deterministic:
        return policy_version.lockstep_admissible(
            ledger.admitted,
            ledger.published,
            batch_groups=schedule.batch_groups,
            max_mean_lag=schedule.max_mean_lag,
            publish_every=schedule.publish_every,
        )
    return policy_version.admissible(
        ledger.running.size + len(ledger.ready),
        ledger.published,
        ledger.formed,
        max_mean_lag=schedule.max_mean_lag,
        batch_groups=schedule.batch_groups,
    )


def publish_due(ledger: Ledger) -> int | None:
    """Return the version that should be published now, or None.

    In lockstep none may be left out: each publish must take its weights before the learner
    changes them, and is the next multiple of `publish_every` even if more are committed.
    """
    every = ledger.schedule.publish_every
    if ledger.schedule.deterministic:
        version = policy_version.next_publish(ledger.published, every)
        return version if version <= ledger.committed else None
    version = policy_version.publish_target(ledger.committed, every)
    return version if version > ledger.published else None


def sampled_version(ledger: Ledger, index: int) -> int | None:
    """Return the version that samples all of group `index` in lockstep, else None: the newest."""
    schedule = ledger.schedule
    if not schedule.deterministic:
        return None
    return policy_version.lockstep_version(
        index,
        batch_groups=schedule.batch_groups,
        max_mean_lag=schedule.max_mean_lag,
        publish_every=schedule.publish_every,
    )


def oldest_needed(ledger: Ledger) -> int:
    """Return the oldest version that a running or a future group needs, or else the published one.

    Weights of older versions may be released. In the bounded schedule it is the published one.
    """
    first = ledger.running.first
    # The needed version grows with the index, so the first of those to come needs the oldest.
    version = sampled_version(ledger, ledger.admitted if first is None else first.index)
    return ledger.published if version is None else min(version, ledger.published)


def resumed_version(ledger: Ledger) -> int:
    """Return the version that is published after a restart.

    In lockstep the one that was, or should have been, so that a restart changes nothing; in the
    bounded schedule the newest.
    """
    if ledger.schedule.deterministic:
        return publish_due(ledger) or ledger.published
    return ledger.committed


def is_stuck(ledger: Ledger) -> bool:
    """Return whether the learner waits for ever: nothing runs, and no event is on its way.

    That is: nothing runs or may be admitted, each batch formed is committed, and no publish
    is due. By the theorems of `policy_version` no such state can be reached.
    """
    waits = ledger.learner_waits and not ledger.in_batch and publish_due(ledger) is None
    return waits and not ledger.running and may_admit(ledger) == 0
