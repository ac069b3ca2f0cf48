"""What keeps a run answerable: signals, a guard of the event loop, and a last resort.

SIGINT or SIGTERM ends the run in order; a second one kills it. SIGUSR1 says who waits for what
since when. Foreign code can refuse to be cancelled; a run that can't end in order for that
reason is ended by force, so that it never hangs silently.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import trio

from .loop_guard import LoopGuard
from .rollout import episode

REPEATED_SIGNAL_SECONDS = 0.5
FORCED_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h

BLOCKED_SECONDS = 5.0  # a loop that stands still for so long is reported

Describe = Callable[[float], Sequence[str]]  # of the present time of trio's clock


async def stop_on_signal(
    stop: Callable[[signal.Signals], None], give_back: Callable[[], None]
) -> None:
    """Call `stop` at the first SIGINT or SIGTERM; one that comes later kills the process.

    Args:
      give_back: called when the next signal would kill, such as to restore the terminal.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        stop(signal.Signals(await anext(signals)))
        with trio.CancelScope(shield=True):  # a shell may send the same signal twice
            await trio.sleep(REPEATED_SIGNAL_SECONDS)
    give_back()
    for number in (signal.SIGINT, signal.SIGTERM):
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


@contextmanager
def forced_end(
    describe: Describe, *, after_seconds: float
) -> Iterator[Callable[[], Awaitable[None]]]:
    """End the process by force if the run in this context can't end in order.

    Foreign code may refuse to be cancelled. Where the run has not ended `after_seconds` after it
    was cancelled, what still waits is written to standard error and the process ends at once,
    with exit code 70: nothing is closed and no summary written any more.

    Yields:
      A function to run as a task of the run's nursery: its cancellation starts the time.
    """
    started: list[tuple[float, float]] = []

    def end() -> None:
        try:
            say_why(*started[0])
        finally:  # whatever a closed pipe or a foreign name does
            os._exit(FORCED_EXIT_CODE)

    def say_why(trio_time: float, monotonic: float) -> None:
        lines = "\n  ".join(describe(trio_time + time.monotonic() - monotonic))
        sys.stderr.write(
            f"headrace: the run can't end in order: {after_seconds:g} s after its end these still "
            f"wait and don't let themselves be cancelled; ended by force\n  {lines}\n"
        )
        sys.stderr.flush()

    timer = threading.Timer(after_seconds, end)
    timer.daemon = True

    async def start_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            started.append((trio.current_time(), time.monotonic()))
            timer.start()

    try:
        yield start_when_cancelled
    finally:
        timer.cancel()


async def guard_loop(interrupt_seconds: float) -> None:
    """Report code that blocks the event loop; interrupt an environment's call that does."""

    def report(text: str) -> None:  # on a thread, while the view stands still
        with suppress(OSError):  # nobody listens
            sys.stderr.write(f"headrace: {text}\n")
            sys.stderr.flush()

    guard = LoopGuard(
        report,
        blocked_seconds=min(BLOCKED_SECONDS, interrupt_seconds),
        interrupt_seconds=interrupt_seconds,
        guarded_file=episode.__file__,
    )
    await guard.serve()
