"""The ledger in the plainest words: a list of groups, in which everything is found by looking."""

import itertools
from dataclasses import dataclass, field

from headrace.pipeline.groups.ledger import (
    Collect,
    Decision,
    Drop,
    FormBatch,
    MemberRule,
    Reissue,
    Restart,
    Retry,
    Schedule,
)


@dataclass
class ReferenceMember:
    """A member of a group."""

    attempt: int = 0
    place: str = "running"  # or done, or lost
    versions: tuple[int, int] = (-1, -1)
    reward: float = 0.0


@dataclass
class ReferenceGroup:
    """A group. Its place is running, ready, formed, consumed, or the reason of its drop."""

    task_id: str
    attempt: int
    start_version: int
    members: list[ReferenceMember]
    place: str = "running"

    def those(self, place: str) -> list[ReferenceMember]:
        return [member for member in self.members if member.place == place]

    @property
    def oldest(self) -> int:
        return min(member.versions[0] for member in self.those("done"))

    @property
    def newest(self) -> int:
        return max(member.versions[1] for member in self.those("done"))


@dataclass
class Reference:
    """What the docstrings of `policy_version` and `members` say. Methods return decisions."""

    schedule: Schedule
    rule: MemberRule
    groups: list[ReferenceGroup] = field(default_factory=list)
    batches: list[list[int]] = field(default_factory=list)
    committed: int = 0
    published: int = 0
    reissued: int = 0
    ignored: int = 0
    requested: bool = False
    ended: bool = False

    # Looking.

    def at(self, place: str) -> list[int]:
        return [index for index, group in enumerate(self.groups) if group.place == place]

    def pinned(self, index: int) -> int | None:
        """The first version that is a multiple of m and not below the group's batch - eta."""
        if not self.schedule.deterministic:
            return None
        batch = index // self.schedule.batch_groups
        multiples = itertools.count(0, self.schedule.publish_every)
        return next(v for v in multiples if v >= batch - self.schedule.max_mean_lag)

    def room(self) -> int:
        if self.ended:
            return 0
        if self.schedule.deterministic:
            index = len(self.groups)
            while (self.pinned(index) or 0) <= self.published:
                index += 1
            return index - len(self.groups)
        outstanding = len(self.at("running")) + len(self.at("ready"))
        ahead = self.published + self.schedule.max_mean_lag + 1 - len(self.batches)
        return max(0, ahead * self.schedule.batch_groups - outstanding)

    def due(self) -> int | None:
        versions = range(self.published + 1, self.committed + 1)
        due = [v for v in versions if v % self.schedule.publish_every == 0]
        if not due:
            return None
        return due[0] if self.schedule.deterministic else due[-1]

    def needed(self) -> int:
        if not self.schedule.deterministic:
            return self.published
        indexes = [*self.at("running"), len(self.groups)]  # versions grow with the index
        return min(self.published, *(self.pinned(index) or 0 for index in indexes))

    def lags(self) -> list[int]:
        lags = [
            number - self.groups[index].oldest
            for number, batch in enumerate(self.batches)
            for index in batch
        ]
        masked = self.schedule.over_age == "mask"
        return [min(lag, self.schedule.max_lag) for lag in lags] if masked else lags

    def is_late(self, index: int, member: int, attempt: int) -> bool:
        if index not in self.at("running"):
            return True
        found = self.groups[index].members[member]
        return found.place != "running" or found.attempt != attempt

    # Events.

    def admit(self, task_id: str, attempt: int) -> list[Decision]:
        pinned = self.pinned(len(self.groups))
        version = self.published if pinned is None else pinned
        members = [ReferenceMember() for _ in range(self.rule.size)]
        self.groups.append(ReferenceGroup(task_id, attempt, version, members))
        return []

    def done(self, index: int, member: int, versions: tuple[int, int], reward: float) -> None:
        found = self.groups[index].members[member]
        found.place, found.versions, found.reward = "done", versions, reward

    def done_decisions(self, index: int) -> list[Decision]:
        """What follows once no member runs any more."""
        group = self.groups[index]
        if group.those("running"):
            return []
        rewards = {member.reward for member in group.those("done")}
        if self.schedule.equal_rewards == "drop" and len(rewards) == 1:
            return self.drop([index], "equal_rewards")
        if self.schedule.over_age == "mask" and self.too_old(group.newest):
            return [*self.drop([index], "over_age"), *self.reissue([index])]
        group.place = "ready"
        places = enumerate(group.members)
        return [Collect(index, tuple(i for i, member in places if member.place == "done"))]

    def failed(self, index: int, member: int, reason: str) -> list[Decision]:
        group = self.groups[index]
        found = group.members[member]
        if self.rule.failure == "retry" and found.attempt < self.rule.max_retries:
            found.attempt += 1
            return [Retry(index, member, found.attempt)]
        found.place = "lost"
        enough = self.rule.min_size if self.rule.failure == "survivors" else self.rule.size
        if self.rule.size - len(group.those("lost")) < enough:
            return self.drop([index], reason)
        return self.done_decisions(index)

    def cancel(self, index: int) -> list[Decision]:
        drops = self.drop([index], "cancelled")
        return drops if self.schedule.deterministic else [*drops, *self.reissue([index])]

    def resume(self) -> list[Decision]:
        lockstep = self.schedule.deterministic
        self.published = (self.due() or self.published) if lockstep else self.committed
        self.requested = False
        for index in self.at("running"):
            group, pinned = self.groups[index], self.pinned(index)
            group.start_version = self.published if pinned is None else pinned
            group.members = [ReferenceMember() for _ in range(self.rule.size)]
        return [
            Restart(index, self.groups[index].task_id, self.groups[index].attempt)
            for index in self.at("running")
        ]

    def abandon(self) -> list[Decision]:
        self.ended, self.requested = True, False
        return self.drop([*self.at("running"), *self.ready_by_age()], "run_ended")

    # Batches.

    def form(self) -> list[Decision]:
        """Form the next batch if the learner waits and it is complete."""
        taken = self.next_batch() if self.requested else None
        if taken is None:
            return []
        for index in taken:
            self.groups[index].place = "formed"
        self.batches.append(taken)
        self.requested = False
        return [FormBatch(len(self.batches) - 1, tuple(taken)), *self.expire()]

    def next_batch(self) -> list[int] | None:
        size = self.schedule.batch_groups
        if not self.schedule.deterministic:
            ready = self.ready_by_age()
            return ready[:size] if len(ready) >= size else None
        start = len(self.batches) * size
        places = self.groups[start : start + size]
        if len(places) < size or any(group.place == "running" for group in places):
            return None
        return [start + i for i, group in enumerate(places) if group.place == "ready"]

    def ready_by_age(self) -> list[int]:
        return sorted(self.at("ready"), key=lambda index: (self.groups[index].oldest, index))

    def too_old(self, version: int) -> bool:
        return len(self.batches) - version > self.schedule.max_lag

    def expire(self) -> list[Decision]:
        groups = self.groups
        if self.schedule.over_age == "mask":
            old = [i for i in self.ready_by_age() if self.too_old(groups[i].newest)]
        else:
            old = [i for i in self.at("running") if self.too_old(groups[i].start_version)]
            old += [i for i in self.ready_by_age() if self.too_old(groups[i].oldest)]
        return [*self.drop(old, "over_age"), *self.reissue(old)]

    def drop(self, indexes: list[int], reason: str) -> list[Decision]:
        for index in indexes:
            self.groups[index].place = reason
        return [Drop(index, reason) for index in indexes]

    def reissue(self, indexes: list[int]) -> list[Decision]:
        groups = [self.groups[index] for index in indexes]
        again = [group for group in groups if group.attempt < self.schedule.max_reissues]
        self.reissued += len(again)
        return [Reissue(group.task_id, group.attempt + 1) for group in again]
