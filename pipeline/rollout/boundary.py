"""Where exceptions become faults of a stated kind, so that a fault always has an owner."""

import math
from types import TracebackType

import trio

from ..types import FailureKind


class Fault(Exception):
    """What went wrong in one episode; becomes an `EpisodeFailure`."""

    def __init__(self, kind: FailureKind, text: str):
        super().__init__(text)
        self.kind = kind


class Boundary:
    """A context that turns an error or a missed deadline inside into a `Fault`.

    Cancellation from outside and errors that aren't `Exception`s pass. A class and not a
    generator, since every call of an environment goes through one.
    """

    def __init__(self, what: str, kinds: tuple[FailureKind, FailureKind], deadline_seconds: float):
        """Args:
        what: for people.
        kinds: of an error, of a missed deadline.
        """
        self._what = what
        self._error_kind, self._timeout_kind = kinds
        self._deadline_seconds = deadline_seconds
        self._scope = trio.move_on_after(deadline_seconds)

    def pause(self) -> None:
        """Let no deadline run until `resume`."""
        self._scope.deadline = math.inf

    def resume(self, what: str, deadline_seconds: float, *, shield: bool) -> None:
        """Start something else in the same scope, with a deadline of its own.

        Args:
          shield: keep cancellation from outside away from here on.
        """
        self._what, self._deadline_seconds = what, deadline_seconds
        self._scope.deadline = trio.current_time() + deadline_seconds
        self._scope.shield = shield

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
            error = rest
        if self._scope.cancelled_caught:
            text = f"{self._what} took more than {self._deadline_seconds} s"
            raise Fault(self._timeout_kind, text) from error
        if isinstance(error, Exception):
            raise Fault(self._error_kind, f"{self._what}: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as worse:  # of a foreign __str__; nothing of it is worth a run
        return f"{type(error).__name__}, which fails to describe itself: {type(worse).__name__}"
