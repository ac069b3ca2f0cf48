"""What an update's numbers warn of: notes for people, never an exception. Plain Python.

Invariant: the same numbers give the same notes, and numbers that are missing give none.
"""

import math
from collections.abc import Callable, Mapping

LEAST_EFFECTIVE_SHARE = 0.3  # of the weighed tokens or sequences
LEAST_MOVED_SHARE = 0.01  # of the parameters' numbers
MOST_FLAT_SHARE = 0.5  # of a batch's groups


def alarms(numbers: Mapping[str, float], *, compares_members: bool) -> dict[str, str]:
    """Say what is wrong with an update, by a short name.

    Args:
      numbers: of the learner (`importance_ess`, `grad_norm`, `update_norm`, `moved_share`) and the
        batch (`flat_share` of the groups, `members` of the largest group); `teacher_kl` with a
        teacher.
      compares_members: whether an advantage needs other members of the group.

    Example:
      >>> alarms({"importance_ess": 0.07}, compares_members=True)["ess"][:43]
      'the effective sample size has fallen to 7% '
    """
    found: dict[str, str] = {}
    effective = numbers.get("importance_ess", 1.0)
    if effective < LEAST_EFFECTIVE_SHARE:
        found["ess"] = (
            f"the effective sample size has fallen to {effective:.0%} of what is weighed: the "
            "data is far from the policy; lower --schedule.max-mean-lag or --learner.learning-rate"
        )
    if not math.isfinite(numbers.get("grad_norm", 0.0)):
        found["nan"] = (
            "the gradient is not finite, so the update was left out and nothing is learnt while "
            "this lasts; lower --learner.learning-rate, or look for what overflows"
        )
    # Without a gradient an update is what is left of those before, and small for that reason.
    has_update = numbers.get("update_norm", 0.0) > 0 and numbers.get("grad_norm", 1.0) > 0
    if has_update and numbers.get("moved_share", 1.0) < LEAST_MOVED_SHARE:
        found["unmoved"] = (
            f"an update changed only {numbers['moved_share']:.2%} of the parameters' numbers: it "
            "is below the resolution of their type (bfloat16 keeps 8 bits); train in float32, or "
            "raise --learner.learning-rate"
        )
    if "teacher_kl" in numbers:  # a teacher teaches groups without any difference, too
        return found
    alone = numbers.get("members", 2) == 1 and numbers.get("flat_share", 1.0) == 1.0
    if compares_members and alone:
        found["lone"] = (
            "every group has a single member, so a comparison within groups gives no advantage; "
            "raise --rollout.group-size or --rollout.min-group-size"
        )
    elif numbers.get("flat_share", 0.0) >= MOST_FLAT_SHARE:
        found["flat"] = (
            f"{numbers['flat_share']:.0%} of the batch's groups have advantages of 0 only and "
            "teach nothing: tasks too easy or too hard; see --schedule.equal-rewards drop"
        )
    return found


class Watch:
    """Notes what is wrong with a run's updates, once for as long as it lasts."""

    def __init__(self, note: Callable[[str], None], *, compares_members: bool) -> None:
        """Args:
        note: tells people.
        compares_members: as for `alarms`.
        """
        self._compares_members = compares_members
        self._note = note
        self._lasting: set[str] = set()

    def count(self, record: Mapping[str, float]) -> int:
        """Look at an update's record, which has its `step`; return how much is wrong."""
        found = alarms(record, compares_members=self._compares_members)
        for name in found.keys() - self._lasting:
            self._note(f"step {record['step']:.0f}: {found[name]}")
        self._lasting = set(found)
        return len(found)
