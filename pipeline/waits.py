"""Who waits for what since when: every wait of a stage has a name and a deadline.

People read it on SIGUSR1, and the watchdog tells it when nothing moves any more.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from ..envs.cancellation import is_stray
from .errors import HeadraceError, PipelineStalled, describe, innermost, stage

LOOKS_A_STALL = 10  # the watchdog looks so often before it calls a stall one

Describe = Callable[[float], Sequence[str]]  # of the present time of trio's clock


class DeadlineMissed(HeadraceError):
    """A stage took longer than it may: says what, how long, and which setting to raise."""


@dataclass(frozen=True, eq=False)
class Wait:
    """One wait that hasn't ended.

    Attributes:
      stage: the stage that waits, as in the table of `pipeline`.
      what: what it waits for, for people.
      since: when it began, in seconds of trio's clock.
      deadline_seconds: how long it may take; infinite for a stage with deadlines of its own.
    """

    stage: str
    what: str
    since: float
    deadline_seconds: float

    def describe(self, now: float) -> str:
        """Say it in one line."""
        text = f"{self.stage}: {self.what}, for {now - self.since:.1f} s"
        limit = f" of at most {self.deadline_seconds:g} s"
        return text + limit * math.isfinite(self.deadline_seconds)


def _missed(wait: Wait, setting: str, failed: str = "") -> DeadlineMissed:
    text = f"{wait.what} took more than {wait.deadline_seconds:g} s{failed}"
    return DeadlineMissed(f"{text}; mend it, or raise {setting}")


class Waits:
    """The stages' waits that haven't ended."""

    def __init__(self) -> None:
        self._open: dict[Wait, None] = {}
        self.moved = 0.0  # when one began or ended last

    @contextmanager
    def on(
        self, name: str, what: str, deadline_seconds: float = math.inf, *, setting: str = ""
    ) -> Iterator[None]:
        """Do the work of a stage inside, within a deadline if there is one.

        Args:
          name: the stage's.
          what: what it does or waits for, for people.
          setting: the flag that sets the deadline.

        Raises:
          StageFailed: for an error inside, and for a missed deadline, with a `DeadlineMissed`
            as its cause.
        """
        wait = Wait(name, what, trio.current_time(), deadline_seconds)
        self._open[wait] = None
        self.moved = wait.since
        try:
            with stage(name):
                scope = trio.move_on_after(deadline_seconds)
                try:
                    with scope:
                        yield
                except BaseException as error:
                    if is_stray(error):
                        stray = "a cancellation escaped from its scope; mend that code"
                        raise RuntimeError(stray) from error
                    if not (isinstance(error, Exception) and scope.cancel_called):
                        raise
                    failed = f" and then failed: {describe(innermost(error))}"
                    raise _missed(wait, setting, failed) from error
                if scope.cancelled_caught:
                    raise _missed(wait, setting)
        finally:
            del self._open[wait]
            self.moved = trio.current_time()

    def describe(self, now: float) -> list[str]:
        """List the waits, the longest first. May be called from any thread."""
        return [wait.describe(now) for wait in [*self._open]]


async def watch(moved: Callable[[], float], limit_seconds: float, describe: Describe) -> None:
    """End a run in which nothing moves.

    Args:
      moved: says when something moved last, in seconds of trio's clock.

    Raises:
      StageFailed: of the watchdog, with a `PipelineStalled` as its cause, when nothing has moved
        for so long. Time in which the whole process stood still doesn't count.
    """
    interval = limit_seconds / LOOKS_A_STALL
    looked = woke = trio.current_time()
    with stage("watchdog"):
        while True:
            await trio.sleep(interval)
            now = trio.current_time()
            if now - looked > 2 * interval:
                woke = now  # the whole process stood still, so nothing could move
            looked = now
            if now - max(woke, moved()) >= limit_seconds:
                raise stalled(f"nothing has moved for {limit_seconds:g} s", describe)


def stalled(why: str, describe: Describe) -> PipelineStalled:
    """Make the error of a run in which nothing can move."""
    lines = describe(trio.current_time())
    return PipelineStalled("\n  ".join([f"{why}. Who waits for what:", *lines]))
