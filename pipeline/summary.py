"""The summary that a run leaves however it ends: in order, with an error, or by force."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from .errors import stage
from .observe.run_directory import RunDirectory
from .supervise import FORCED_LATER_SECONDS, ForcedEnd
from .waits import Describe


@contextmanager
def summarised(
    directory: RunDirectory,
    summarise: Callable[[], Mapping[str, Any]],
    describe: Describe,
    *,
    exit_deadline_seconds: float,
) -> Iterator[ForcedEnd]:
    """Write a run's summary when the block ends, and give what ends the process by force.

    Args:
      summarise: gives what is known; the run came to its end where the block does without an
        error and `interrupted_by` is None.
      describe: says who waits for what, where an end has to be forced.

    Raises:
      StageFailed: where it can't be written, unless the block failed: that is the error to tell.
    """

    def write(ended: bool) -> None:
        summary = summarise()
        directory.write_summary(summary, finished=ended and summary["interrupted_by"] is None)

    limit = exit_deadline_seconds + FORCED_LATER_SECONDS
    forced = ForcedEnd(describe, partial(write, False), after_seconds=limit)
    try:
        yield forced
    except BaseException:
        forced.disarm()
        with suppress(OSError):
            write(False)
        raise
    forced.disarm()
    with stage("observe"):
        write(True)
