"""Budgets for what is of no use: a run that uses them up would go on for ever, or teach bias.

A plain state machine, told of each outcome and of what the ledger decided about it.
"""

from .errors import PipelineStalled
from .groups import ledger
from .types import FailureKind, Outcome, Trajectory

EQUAL_GROUPS_A_FAILURE = 10  # a group of equal rewards is that much less of a bad sign
SCORES_LOOKED_AT = 64  # the share of episodes that couldn't be scored is that of so many
_LAST_SCORES = (1 << SCORES_LOOKED_AT) - 1
_UNSCORED = FailureKind.REWARD_ERROR, FailureKind.REWARD_TIMEOUT


class Budgets:
    """Raises when a budget is used up, once each time: many groups may end at one moment."""

    def __init__(self, group_failures: int, unscored_share: float, *, env_name: str):
        """Args:
        group_failures: failed groups in a row; and ten times as many of equal rewards.
        unscored_share: of the last 64 episodes, those that couldn't be scored.
        env_name: for messages.
        """
        self._group_failures = group_failures
        self._unscored_share = unscored_share
        self._env_name = env_name
        self._failed_in_a_row = 0
        self._equal_in_a_row = 0
        self._unscored = 0  # of the last episodes, a bit each

    @property
    def state(self) -> tuple[int, int, int]:
        """What was counted so far, to be set again after a restart."""
        return self._failed_in_a_row, self._equal_in_a_row, self._unscored

    @state.setter
    def state(self, counted: tuple[int, int, int]) -> None:
        self._failed_in_a_row, self._equal_in_a_row, self._unscored = counted

    def ended(self, outcome: Outcome) -> None:
        """Count an episode.

        Raises:
          PipelineStalled: if too many couldn't be scored: the others are a biased choice.
        """
        if isinstance(outcome, Trajectory):
            self._unscored = self._unscored << 1 & _LAST_SCORES
            return
        if outcome.kind not in _UNSCORED:
            return
        self._unscored = self._unscored << 1 & _LAST_SCORES | 1
        failed, most = self._unscored.bit_count(), self._unscored_share
        if failed > most * SCORES_LOOKED_AT:
            self._unscored = 0
            raise PipelineStalled(
                f"{failed} of the last {SCORES_LOOKED_AT} episodes couldn't be scored, at most a "
                f"share of {most:g} may; the last one: {outcome.error}; mend the reward, or "
                "raise --controller.unscored-share"
            )

    def decided(self, decision: ledger.Decision, outcome: Outcome) -> None:
        """Count what became of a group when its last episode had this outcome.

        Raises:
          PipelineStalled: if too many groups in a row were of no use.
        """
        match decision:
            case ledger.Collect():
                self._failed_in_a_row = self._equal_in_a_row = 0
            case ledger.Drop(reason=ledger.OVER_AGE):
                pass  # other groups, if this outcome made a batch complete
            case ledger.Drop(reason=ledger.EQUAL_REWARDS):
                self._failed_in_a_row = 0
                self._equal_in_a_row += 1
                self._check_equal()
            case ledger.Drop() if not isinstance(outcome, Trajectory):
                self._failed_in_a_row += 1
                self._check_failures(outcome.error)

    # Equality below, so that groups that end at the same moment make one error only.

    def _check_equal(self) -> None:
        if self._equal_in_a_row == EQUAL_GROUPS_A_FAILURE * self._group_failures:
            raise PipelineStalled(
                f"{self._equal_in_a_row} groups in a row were dropped since all their rewards "
                "were equal: nothing is left to learn, or nothing can be; set "
                "--schedule.equal-rewards keep"
            )

    def _check_failures(self, error: str) -> None:
        if self._failed_in_a_row == self._group_failures:
            raise PipelineStalled(
                f"{self._failed_in_a_row} groups in a row failed, the last one with {error!r}; "
                f"mend the environment {self._env_name!r} or its rewards, or raise "
                "--controller.group-failures"
            )
