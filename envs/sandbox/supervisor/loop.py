"""One thread that waits for descriptors, times and the deaths of children.

Invariant: each child is reaped as soon as it dies, those included that were inherited from a
sandbox whose own parent was killed.
"""

import contextlib
import ctypes
import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable

Callback = Callable[[], None]
_SUBREAPER = 36  # prctl
_FEW_TIMERS = 256
_LONGEST_WAIT_SECONDS = 1.0  # how soon the death of the parent is seen where nothing else says it


class Timer:
    """A call that will be made unless it is cancelled."""

    def __init__(self, callback: Callback) -> None:
        self._callback: Callback | None = callback

    @property
    def is_pending(self) -> bool:
        """Whether the call is still to be made."""
        return self._callback is not None

    def cancel(self) -> None:
        """Never make the call."""
        self._callback = None

    def fire(self) -> None:
        """Make the call, once."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """Runs callbacks until it is stopped."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._most_timers = _FEW_TIMERS
        self._order = itertools.count()
        self._children: dict[int, Callable[[int], None]] = {}
        self._running = True
        self._parent = os.getppid()
        self._become_reaper()

    def _become_reaper(self) -> None:
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        wakeup, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self.watch(wakeup, lambda: _drain(wakeup))

    def watch(self, fd: int, callback: Callback) -> None:
        """Call back whenever a descriptor can be read."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """Stop calling back; also for a descriptor that isn't watched."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def after(self, seconds: float, callback: Callback) -> Timer:
        """Call back once, in so many seconds."""
        if len(self._timers) > self._most_timers:  # mostly cancelled ones of calls that were quick
            self._timers = [entry for entry in self._timers if entry[2].is_pending]
            heapq.heapify(self._timers)
            self._most_timers = 2 * len(self._timers) + _FEW_TIMERS
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def on_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call back with the wait status when this child is dead."""
        self._children[pid] = callback

    def strangers(self, living: Iterable[int]) -> list[int]:
        """Return which of these children nobody here has started: they were inherited."""
        return [pid for pid in living if pid not in self._children]

    def stop(self) -> None:
        """Let `run` return."""
        self._running = False

    def run(self, parent_died: Callback) -> None:
        """Run callbacks until `stop`.

        Args:
          parent_died: called when the process that started this one is gone.
        """
        while self._running:
            for key, _ in self._selector.select(self._wait_seconds()):
                if key.fd in self._selector.get_map():  # a callback may unwatch another
                    key.data()
            while self._timers and self._timers[0][0] <= time.monotonic():
                heapq.heappop(self._timers)[2].fire()
            self._reap()
            if os.getppid() != self._parent:
                self._parent = os.getppid()
                parent_died()

    def _wait_seconds(self) -> float:
        if not self._timers:
            return _LONGEST_WAIT_SECONDS
        return min(_LONGEST_WAIT_SECONDS, max(0.0, self._timers[0][0] - time.monotonic()))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                callback = self._children.pop(pid, None)
                if callback is not None:
                    callback(status)


def _nothing(number: int, frame: object) -> None:
    """Only the wake-up matters."""


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass
