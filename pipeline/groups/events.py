"""What the ledger is told, and what it decides. Plain records; the ledger gives them meaning."""

from dataclasses import dataclass

# Events ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Admitted:
    """A group is started. Its index is the ledger's `admitted` before the event."""

    task_id: str
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class GroupReady:
    """A running group ended well; `useful` is false if its rewards are all equal."""

    index: int
    oldest_version: int
    useful: bool = True


@dataclass(frozen=True, slots=True)
class GroupFailed:
    """A running group ended without enough trajectories."""

    index: int
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
    """The sampler has acknowledged version `version`: it samples nothing older any more."""

    version: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The run ends: nothing outstanding will be used, nothing more is admitted."""


Event = Admitted | GroupReady | GroupFailed | BatchRequested | Committed | Published | Abandoned


# Decisions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormBatch:
    """Give these groups to the learner, as batch number `batch`, oldest version first."""

    batch: int
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a running group. It counts as dropped; no `Drop` follows."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a group that has ended: it is too old, teaches nothing, or failed."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reissue:
    """Admit this task again, with this attempt, before any new task."""

    task_id: str
    attempt: int


Decision = FormBatch | Cancel | Drop | Reissue
Decisions = tuple[Decision, ...]
