"""What the ledger is told, and what it decides. Plain records; the ledger gives them meaning.

Those of every episode are named tuples: one takes a third of the time of a frozen dataclass.
"""

from dataclasses import dataclass
from typing import NamedTuple

# Reasons of a `Drop`; a group that failed has its last member's reason.
OVER_AGE = "over_age"
EQUAL_REWARDS = "equal_rewards"
CANCELLED = "cancelled"
RUN_ENDED = "run_ended"


# Events ------------------------------------------------------------------------------------


class Issue(NamedTuple):
    """A task that is given out, for the first time or for another."""

    task_id: str
    attempt: int = 0


class Admitted(NamedTuple):
    """Groups are started, with all their members. The first index is `admitted` before the event.

    One event for all that start at a moment, so that the ledger is copied and checked once.
    """

    issues: tuple[Issue, ...]


class MemberDone(NamedTuple):
    """A member of a running group ended well; the versions are those of its sampled tokens."""

    index: int  # type: ignore[assignment]  # hides a method of tuples
    member: int
    attempt: int
    oldest_version: int
    newest_version: int
    reward: float


@dataclass(frozen=True, slots=True)
class MemberFailed:
    """A try of a member of a running group has no trajectory."""

    index: int
    member: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class BatchRequested:
    """The learner is free. Asking again before the answer is the same as asking once."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The learner has applied batch `batch`: the policy version is now `batch` + 1."""

    batch: int


@dataclass(frozen=True, slots=True)
class Published:
    """The sampler has acknowledged version `version`.

    What doesn't ask for an older version that is held is sampled with it from now on.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Somebody else has stopped a running group."""

    index: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A saved ledger goes on after a restart.

    The sampler has the weights of `version`, which is `resumed_version`; in lockstep also those
    of each publish from `oldest_needed` on. Nothing of a running group was saved.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The run ends: nothing outstanding will be used, nothing more is admitted."""


Event = (
    Admitted
    | MemberDone
    | MemberFailed
    | BatchRequested
    | Committed
    | Published
    | Cancelled
    | Resumed
    | Abandoned
)


# Decisions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retry:
    """Run this member again, as this attempt."""

    index: int
    member: int
    attempt: int


class Collect(NamedTuple):
    """All members have ended, and these make the group, which is ready now."""

    index: int  # type: ignore[assignment]  # hides a method of tuples
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a group, and stop what still runs of it."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reissue:
    """Admit this task again, with this attempt, before any new task."""

    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a running group anew under its own index, all members from their first attempt."""

    index: int
    task_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class FormBatch:
    """Give these groups to the learner as batch number `batch`.

    The bounded schedule takes the oldest version first; lockstep goes by index, and may have
    no group at all, where all of a batch have failed: then the version grows without an update.
    """

    batch: int
    indexes: tuple[int, ...]


Decision = Retry | Collect | Drop | Reissue | Restart | FormBatch
Decisions = tuple[Decision, ...]
