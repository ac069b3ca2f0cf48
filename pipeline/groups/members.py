"""The members of one group: tried, tried again, done or lost. A pure state machine.

Law 6: a group is used whole or not at all, by a stated rule. At any time
size = still running + done + lost.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ..errors import check
from .events import MemberDone

ENDED = -1  # in place of the attempt of a member that is done or lost


@dataclass(frozen=True)
class MemberRule:
    """What becomes of a group with a failed member.

    `retry` gives a failed member further tries, and drops the group when they are used up.
    `drop` drops it at the first failure. `survivors` uses the members that are left, if they
    are enough. A group that can no longer be used is dropped at once.

    Attributes:
      size: G, members of a group, >= 1.
      max_retries: further tries of a member with `retry`, >= 0.
      min_size: members that must be left with `survivors`, 1..G.

    Raises:
      ConfigError: for impossible numbers.
    """

    size: int = 1
    failure: Literal["retry", "survivors", "drop"] = "retry"
    max_retries: int = 2
    min_size: int = 1

    def __post_init__(self) -> None:
        check(self.size >= 1, "rollout.group_size", self.size, ">= 1")
        known = self.failure in ("retry", "survivors", "drop")
        check(known, "rollout.failure", self.failure, "'retry', 'survivors' or 'drop'")
        check(self.max_retries >= 0, "rollout.max_retries", self.max_retries, ">= 0")
        most = self.size if self.failure == "survivors" else self.min_size
        condition = f"1..{self.size}, the size of a group"
        check(1 <= self.min_size <= most, "rollout.min_group_size", self.min_size, condition)

    @property
    def retries(self) -> int:
        """How many further tries a member has."""
        return self.max_retries if self.failure == "retry" else 0

    @property
    def expendable(self) -> int:
        """How many members a group may lose."""
        return self.size - self.min_size if self.failure == "survivors" else 0

    @cached_property
    def start(self) -> "Members":
        """The members of a new group: all in their first try.

        Example:
          >>> MemberRule(size=3).start
          Members(attempts=(0, 0, 0), done=(), lost=0)
        """
        return Members((0,) * self.size)


class Members(NamedTuple):
    """The state. A named tuple, as making one takes a third of what a frozen dataclass does.

    Attributes:
      attempts: of each member the try that runs now, from 0, or `ENDED`.
      done: the members that ended well, in the order in which they did.
      lost: how many members have failed for good.
    """

    attempts: tuple[int, ...]
    done: tuple[MemberDone, ...] = ()
    lost: int = 0

    @property
    def running(self) -> int:
        """How many have not ended."""
        return len(self.attempts) - self.attempts.count(ENDED)

    @property
    def places(self) -> tuple[int, ...]:
        """The members that ended well, in order."""
        return tuple(sorted([event.member for event in self.done]))

    @property
    def oldest_version(self) -> int:
        """The oldest policy version in the members that ended well; there must be one."""
        return min([event.oldest_version for event in self.done])

    @property
    def newest_version(self) -> int:
        """The newest policy version in the members that ended well; there must be one."""
        return max([event.newest_version for event in self.done])

    @property
    def equal_rewards(self) -> bool:
        """Whether the members that ended well all have the same reward."""
        return len({event.reward for event in self.done}) <= 1


def is_late(members: Members, member: int, attempt: int) -> bool:
    """Return whether a result is not of the try that runs now.

    Raises:
      ValueError: for a member that the group never had.
    """
    size = len(members.attempts)
    if not 0 <= member < size:
        raise ValueError(f"a group has the members 0..{size - 1}, got a result of member {member}")
    return attempt == ENDED or members.attempts[member] != attempt


def succeed(members: Members, event: MemberDone) -> Members:
    """Count the member as done."""
    attempts = _set(members.attempts, event.member, ENDED)
    return Members(attempts, (*members.done, event), members.lost)


def fail(members: Members, member: int, rule: MemberRule) -> Members:
    """Give the member its next try, or count it as lost."""
    attempt = members.attempts[member]
    if attempt < rule.retries:
        return Members(_set(members.attempts, member, attempt + 1), members.done, members.lost)
    return Members(_set(members.attempts, member, ENDED), members.done, members.lost + 1)


def _set(attempts: tuple[int, ...], member: int, attempt: int) -> tuple[int, ...]:
    return (*attempts[:member], attempt, *attempts[member + 1 :])
