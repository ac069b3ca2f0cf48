"""Worker threads for calls that may never return.

A call that is cancelled leaves its thread alone: nothing can stop a thread. Such an abandoned
thread is replaced, `max_abandoned` times, so that as many calls as before run at once; beyond
that, calls wait for a thread to end. When more than `max_abandoned` calls still run after the
deadline that they had, they hang, and so does everything that needs them: an error ends the run.

Invariant: `busy <= threads` and `busy + abandoned <= threads + max_abandoned`, calls that
don't wait for a place apart.
"""

import contextlib
import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeVar

import trio

from .base import EnvironmentBroken
from .places import Places, places_of_run

T = TypeVar("T")

_PLACES_SHOWN = 5
_QUIET_SECONDS = 1.0  # after an error, for its nurseries to stop the other callers
_CLOCK_SECONDS = 0.001  # deadlines and what is compared with them come from different clocks
_OWN_FILES = {__file__, str(Path(__file__).with_name("threads.py"))}


@dataclass(frozen=True)
class ThreadStatistics:
    """What the threads of an environment do.

    Attributes:
      threads: so many calls run at once, at most.
      busy: calls that run and that somebody waits for.
      abandoned: calls that were cancelled and still run.
      abandoned_total: calls abandoned so far, those that have ended since included.
    """

    threads: int
    busy: int
    abandoned: int
    abandoned_total: int


class TooManyHungThreads(EnvironmentBroken):
    """Calls of an environment or tool hang, too many to go on."""


class WorkerThreads:
    """Makes calls in worker threads, each with a name. One trio run at a time uses it."""

    def __init__(self, name: str, *, threads: int, max_abandoned: int, hint: str):
        """Args:
        name: of what is called, for thread names and messages.
        threads: so many calls run at once, at least 1.
        max_abandoned: so many calls may hang, at least 0.
        hint: what to do when more do.

        Raises:
          ValueError: for numbers out of range.
        """
        _check("threads", threads, 1)
        _check("max_abandoned", max_abandoned, 0)
        self.name = name
        self._threads = threads
        self._max_abandoned = max_abandoned
        self._hint = hint
        self.lock = threading.Lock()  # of everything below, and of the calls' states
        self.busy: set[ThreadCall[Any]] = set()
        self.abandoned: set[ThreadCall[Any]] = set()
        self._abandoned_total = 0
        self._quiet_until = 0.0
        # One for each trio run: a thread that outlives its run never gives its place back.
        self._places = Places(f"threads of {name}")

    def statistics(self) -> ThreadStatistics:
        """Return what the threads do now; from any thread, also outside of a trio run."""
        with self.lock:
            return ThreadStatistics(
                self._threads, len(self.busy), len(self.abandoned), self._abandoned_total
            )

    def limiter(self) -> trio.CapacityLimiter:
        """Return the places of this trio run; a thread holds its place until it ends."""
        return places_of_run(self._places, self._threads)

    def abandon(self, call: "ThreadCall[Any]") -> None:
        """Count a call as abandoned; the lock is held."""
        call.was_abandoned = True
        self.busy.discard(call)
        self.abandoned.add(call)
        self._abandoned_total += 1

    def replace_abandoned(self) -> None:
        """Give one more place for each thread of this run that is abandoned, within bounds."""
        limiter = self.limiter()
        with self.lock:
            lost = sum(call.limiter is limiter for call in self.abandoned)
        limiter.total_tokens = self._threads + min(lost, self._max_abandoned)

    def check(self) -> None:
        """Refuse to go on with too many calls that hang.

        Raises:
          TooManyHungThreads: once a second, so that one error ends a run and not hundreds.
        """
        now = time.monotonic()
        with self.lock:
            hung = [call for call in self.abandoned if call.overdue]
        if len(hung) <= self._max_abandoned or now < self._quiet_until:
            return
        self._quiet_until = now + _QUIET_SECONDS
        raise TooManyHungThreads(
            f"{len(hung)} threads of {self.name} hang in calls that missed their deadline, at "
            f"most {self._max_abandoned} may:\n{_places(hung)}\n{self._hint}"
        )


class ThreadCall(Generic[T]):
    """One call in a worker thread, made once by awaiting `result`.

    Attributes:
      was_abandoned: it was cancelled while it ran; it may have ended since.
      limiter: of the place that it takes.
      ended: set on trio's side when an abandoned call has ended, its cleanup included.
    """

    def __init__(
        self,
        threads: WorkerThreads,
        name: str,
        function: Callable[[], T],
        *,
        cleanup: Callable[[], None] | None = None,
        queue: bool = True,
    ):
        """Args:
        name: of the call, for the thread's name.
        cleanup: called by the thread if the call was abandoned and has ended.
        queue: wait for a place. If not, the call is made in any case: it has a place of its
          own, and not even cancellation keeps it from being begun.
        """
        self._threads = threads
        self._name = name
        self._function = function
        self._cleanup = cleanup
        self._queue = queue
        self._given_up = False
        self._overdue_at = 0.0
        self._scope = trio.CancelScope(shield=not queue)
        self._trio: trio.lowlevel.TrioToken | None = None
        self.thread: int | None = None
        self.was_abandoned = False
        self.limiter: trio.CapacityLimiter | None = None
        self.ended = trio.Event()

    @property
    def abandoned(self) -> bool:
        """Whether the call was cancelled while it ran, and still runs."""
        return self in self._threads.abandoned

    @property
    def overdue_in_seconds(self) -> float:
        """Until the deadline under which the call was made; below 0 after it."""
        return self._overdue_at - time.monotonic()

    @property
    def overdue(self) -> bool:
        """Whether the deadline has passed under which the call was made."""
        return self.overdue_in_seconds <= _CLOCK_SECONDS

    async def result(self) -> T:
        """Make the call; return its result or raise its exception.

        Raises:
          TooManyHungThreads: before the call or when it is cancelled at its deadline.
        """
        if self._queue:
            await trio.lowlevel.checkpoint_if_cancelled()
            self._threads.check()
        self._trio = trio.lowlevel.current_trio_token()
        self.limiter = self._threads.limiter() if self._queue else trio.CapacityLimiter(1)
        self._overdue_at = _deadline()
        with self._scope:
            try:
                return await trio.to_thread.run_sync(
                    self._run,
                    thread_name=f"{self._threads.name}.{self._name}",
                    abandon_on_cancel=True,
                    limiter=self.limiter,
                )
            except trio.Cancelled:
                self.give_up()
                raise
        raise AssertionError("nobody cancels the call's own scope")

    # On trio's thread.

    def give_up(self) -> None:
        """Abandon the call if it runs; keep it from running if it hasn't begun.

        Raises:
          TooManyHungThreads: if it runs after its deadline, as too many others do.
        """
        with self._threads.lock:
            self._given_up = True
            running = self in self._threads.busy
            if running:
                self._threads.abandon(self)
        if running:
            self._threads.replace_abandoned()
            if self.overdue:
                self._threads.check()

    def _let_cancel(self) -> None:
        self._scope.shield = False

    def _leave(self) -> None:
        self._threads.replace_abandoned()
        self.ended.set()

    # On the worker thread.

    def _run(self) -> T:
        self._begin()
        try:
            return self._function()
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            # Not the run's, whose signals come to the main thread: foreign code raised it.
            raise RuntimeError(f"{self._name} raised {type(error).__name__}: {error}") from error
        finally:
            self._end()

    def _begin(self) -> None:
        with self._threads.lock:
            if self._given_up:
                raise _GivenUp(f"{self._name} was cancelled before it began")
            self.thread = threading.get_ident()
            self._threads.busy.add(self)
        if not self._queue:
            self._tell_trio(self._let_cancel)

    def _end(self) -> None:
        with self._threads.lock:
            self._threads.busy.discard(self)
            if not self.abandoned:
                return
        try:
            if self._cleanup is not None:
                self._cleanup()
        finally:
            with self._threads.lock:
                self._threads.abandoned.discard(self)
            self._tell_trio(self._leave)

    def _tell_trio(self, function: Callable[[], None]) -> None:
        assert self._trio is not None
        with contextlib.suppress(trio.RunFinishedError):  # then nobody waits for it either
            self._trio.run_sync_soon(function)


class _GivenUp(Exception):
    """A call was cancelled before its thread began with it."""


def _deadline() -> float:
    """Return the deadline of the calling task, in seconds of the monotonic clock."""
    deadline = trio.current_effective_deadline()
    if deadline == -math.inf:  # cancelled already, which says nothing of a deadline
        return math.inf
    return time.monotonic() + deadline - trio.current_time()


def _check(name: str, value: int, lowest: int) -> None:
    if value < lowest:
        raise ValueError(f"{name} must be >= {lowest}, got {value}")


def _places(calls: Sequence[ThreadCall[Any]]) -> str:
    """Say where threads are, the commonest places first."""
    frames = sys._current_frames()
    found = [frames[call.thread] for call in calls if call.thread in frames]
    counts = Counter(_place(frame) for frame in found)
    lines = [f"  {count} in {place}" for place, count in counts.most_common(_PLACES_SHOWN)]
    rest = len(found) - sum(count for _, count in counts.most_common(_PLACES_SHOWN))
    return "\n".join([*lines, f"  {rest} elsewhere"] if rest else lines)


def _place(innermost: FrameType) -> str:
    """Name the function that was called and the innermost one that it is in."""
    outermost, frame = innermost, innermost.f_back
    while frame is not None and frame.f_code.co_filename not in _OWN_FILES:
        outermost, frame = frame, frame.f_back
    if outermost is innermost:
        return _name(innermost)
    return f"{_name(outermost)}, inside {_name(innermost)}"


def _name(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
