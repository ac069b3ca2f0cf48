"""Where exceptions become faults of a stated kind, so that a fault always has an owner."""

import math
from types import TracebackType

import trio

from ...envs.base import RewardFailed
from ...envs.cancellation import STRAY, is_stray, without_cancellation
from ..errors import describe, innermost
from ..types import FailureKind


class Fault(Exception):
    """What went wrong in one episode; becomes an `EpisodeFailure`."""

    def __init__(self, kind: FailureKind, text: str):
        super().__init__(text)
        self.kind = kind


def failure_kind(failed: RewardFailed) -> FailureKind:
    """Return the kind of an episode's failure that a reward brought about."""
    return FailureKind.REWARD_TIMEOUT if failed.timed_out else FailureKind.REWARD_ERROR


class Boundary:
    """A context whose owner calls foreign code in it, one named call after the other.

    What goes wrong in a call comes out as a `Fault`: an error, a missed deadline, `stop`. A
    `RewardFailed` has the kinds of rewards, whoever raises it.
    Cancellation from outside, errors that aren't `Exception`s, and errors between two calls
    pass. One scope for many calls, since a scope for each would cost more than all else that
    the host does in a turn.

    Attributes:
      what: the present call, for people; empty between calls.
      since: when it began, in seconds of trio's clock.
      until: when the last one ended that has returned.
      deadline_seconds: how long it may take.
    """

    def __init__(
        self, what: str, kinds: tuple[FailureKind, FailureKind], deadline_seconds: float
    ) -> None:
        """Say what is called first, see `call`: its time runs from now on."""
        self.what, self.deadline_seconds = what, deadline_seconds
        self._error_kind, self._timeout_kind = kinds
        self._clock = trio.lowlevel.current_clock()
        self.since = self.until = self._clock.current_time()
        self._deadline = self.since + deadline_seconds
        self._scope = trio.CancelScope(deadline=self._deadline)
        self._stopped: str | None = None

    def call(
        self, what: str, kinds: tuple[FailureKind, FailureKind], deadline_seconds: float
    ) -> None:
        """Say what is called next, and how long it may take.

        Args:
          what: for people.
          kinds: of an error, of a missed deadline.
        """
        self.what, self.deadline_seconds = what, deadline_seconds
        self._error_kind, self._timeout_kind = kinds
        self.since = self._clock.current_time()
        deadline = self.since + deadline_seconds
        if deadline != self._deadline:  # in virtual time many a call begins as the last one did
            self._scope.deadline = self._deadline = deadline

    @property
    def seconds(self) -> float:
        """How long the present call has taken so far."""
        return self._clock.current_time() - self.since

    def returned(self) -> float:
        """Say that the call is over; what follows is the owner's own code.

        Returns:
          How many seconds it took.

        Raises:
          Fault: where the deadline was missed, or `stop` called, and the call returned all the
            same. Its scope is cancelled then, which the next call would be blamed for.
        """
        now = self.until = self._clock.current_time()
        if self._stopped is not None or now >= self._deadline:
            raise self._cancelled()
        self.what = ""
        return now - self.since

    def pause(self) -> None:
        """Say that the call is over, and let no deadline run until the next one.

        Raises:
          Fault: as `returned`.
        """
        self.returned()
        self._scope.deadline = self._deadline = math.inf

    def shield(self) -> None:
        """Keep cancellation from outside away from here on."""
        self._scope.shield = True

    def stop(self, reason: str) -> None:
        """End the present call; the context ends with a fault of kind `CANCELLED`."""
        self._stopped = reason
        self._scope.cancel()

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._scope.__exit__(kind, error, trace)
        except Exception as rest:  # of a group, when the cancellation in it was taken out
            # Or it is trio's complaint that another scope is still open in this one, as one that
            # an environment holds is; but what went wrong came before that.
            if error is None or rest.__context__ is not error:
                error = rest
        if error is not None:
            self._blame(error)

    def _blame(self, error: BaseException) -> None:
        """Raise the fault that an error stands for; some errors are none."""
        # A cancellation that comes with errors is left out: if anybody meant it, it comes again.
        rest = without_cancellation(error)
        if rest is None:
            if self._scope.cancelled_caught or (self._scope.cancel_called and is_stray(error)):
                raise self._cancelled() from error
            if is_stray(error):
                raise self.stray() from error
        elif isinstance(rest, Exception) and not isinstance(rest, Fault) and self.what:
            raise self._failed(innermost(rest)) from error

    def stray(self) -> Fault:
        """Return the fault of a call that let a cancellation escape from its scope."""
        return Fault(self._error_kind, f"{self.what}: {STRAY}")

    def _failed(self, error: BaseException) -> Fault:
        if self._scope.cancel_called:  # which the call answered with the error
            cancelled = self._cancelled()
            return Fault(cancelled.kind, f"{cancelled}; {describe(error)}")
        if isinstance(error, RewardFailed):
            return Fault(failure_kind(error), str(error))
        return Fault(self._error_kind, f"{self.what}: {describe(error)}")

    def _cancelled(self) -> Fault:
        if self._stopped is not None:
            return Fault(FailureKind.CANCELLED, f"{self.what}: {self._stopped}")
        text = f"{self.what} took more than {self.deadline_seconds} s"
        return Fault(self._timeout_kind, text)
