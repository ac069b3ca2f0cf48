"""What keeps a run answerable: signals, a guard of the event loop, and a last resort.

SIGINT, SIGTERM or SIGHUP ends the run in order; a second one kills it. SIGUSR1 says who waits for
what since when. Foreign code can refuse to be cancelled; a run that can't end in order for that
reason is ended by force, so that it never hangs silently.
"""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import trio

from ..envs import tools
from ..envs.rewards import scorer
from .loop_guard import LoopGuard
from .rollout import episode
from .waits import Describe

REPEATED_SIGNAL_SECONDS = 0.5
LOOK_SECONDS = 0.25  # between two looks at whether something should have ended
FORCED_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
FORCED_LATER_SECONDS = 5.0  # than a device thread that hangs, whose message says more

BLOCKED_SECONDS = 5.0  # a loop that stands still for so long is reported


async def stop_on_signal(
    stop: Callable[[signal.Signals], None], give_back: Callable[[], None]
) -> None:
    """Call `stop` at the first SIGINT, SIGTERM or SIGHUP; one that comes later kills the process.

    SIGHUP, which a terminal sends when it is closed, stays ignored where it is, as under `nohup`.

    Args:
      give_back: called when the next signal would kill, such as to restore the terminal.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    with trio.open_signal_receiver(*numbers) as signals:
        stop(signal.Signals(await anext(signals)))
        # A shell may send the same signal twice; what isn't taken would be raised again, and kill.
        with trio.move_on_after(REPEATED_SIGNAL_SECONDS, shield=True):
            async for _ in signals:
                pass
    give_back()
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


async def describe_on_signal(describe: Describe, tell: Callable[[str], None]) -> None:
    """Tell who waits for what at every SIGUSR1."""
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        async for _ in signals:
            tell(
                "\n  ".join(
                    ["SIGUSR1: who waits for what since when:", *describe(trio.current_time())]
                )
            )


class ForcedEnd:
    """Ends the process by force where it can't end in order.

    Foreign code may refuse to be cancelled. Then what still waits is written to standard error
    and the process ends at once, with exit code 70: nothing is closed any more.
    """

    def __init__(self, describe: Describe, last: Callable[[], None], *, after_seconds: float):
        """Args:
        last: called before the end, such as to write down what is known; on a thread.
        after_seconds: how long an end in order may take.
        """
        self._describe = describe
        self._last = last
        self._after_seconds = after_seconds
        self._timer: threading.Timer | None = None

    def arm(self) -> None:
        """Start the time, unless it runs already; call it on trio's thread."""
        if self._timer is None:
            clock = trio.current_time(), time.monotonic()
            self._timer = threading.Timer(self._after_seconds, self._end, clock)
            self._timer.daemon = True
            self._timer.start()

    def disarm(self) -> None:
        """Stop the time: what was to end has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def arm_when_cancelled(self) -> None:
        """Arm when the surrounding nursery is cancelled: run it as one of its tasks."""
        try:
            await trio.sleep_forever()
        finally:
            self.arm()

    async def arm_while(self, is_ending: Callable[[], bool]) -> None:
        """Arm while what was cancelled should end but may not: run it as a task.

        Its errors are stuck with it, so nothing else would tell.
        """
        while True:
            if is_ending():
                self.arm()
            else:
                self.disarm()
            await trio.sleep(LOOK_SECONDS)

    def _end(self, trio_time: float, monotonic: float) -> None:
        try:
            lines = "\n  ".join(self._describe(trio_time + time.monotonic() - monotonic))
            _write(
                f"the run can't end in order: after {self._after_seconds:g} s these still wait "
                f"and don't let themselves be cancelled; ended by force\n  {lines}"
            )
        finally:  # whatever a foreign name or a full disk does
            try:
                self._last()
            finally:
                os._exit(FORCED_EXIT_CODE)


def end_without_threads(code: int, *, after_seconds: float) -> None:
    """End the process by force if threads of foreign code keep the interpreter from ending.

    Call it last: Python waits for all threads that aren't daemons. Daemons it kills while it
    ends, and one that is in native code then, as an update that was given up, would abort the
    process; so the process is gone before that.

    Args:
      code: the process's exit code, in either case.
    """

    def end() -> None:
        try:
            names = [thread.name for thread in threading.enumerate() if not thread.daemon]
            _write(f"these threads don't end, and are ended by force: {', '.join(names)}")
        finally:
            os._exit(code)

    timer = threading.Timer(after_seconds, end)
    timer.daemon = True
    timer.start()
    atexit.register(_end_before_daemons_do, code)


def _end_before_daemons_do(code: int) -> None:
    with suppress(OSError, ValueError):  # nobody listens, or the stream is closed
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _write(text: str) -> None:
    with suppress(OSError, ValueError):  # nobody listens, or the stream is closed
        sys.stderr.write(f"headrace: {text}\n")
        sys.stderr.flush()


async def guard_loop(interrupt_seconds: float) -> None:
    """Report code that blocks the event loop; interrupt an environment's call that does."""
    guard = LoopGuard(
        _write,
        blocked_seconds=min(BLOCKED_SECONDS, interrupt_seconds),
        interrupt_seconds=interrupt_seconds,
        guarded_files=(episode.__file__, scorer.__file__, tools.__file__),
    )
    await guard.serve()
