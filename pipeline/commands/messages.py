"""What the commands say to people, and the exit codes that go with it.

Exit codes: 0 done, 1 a stage failed, 2 a user's mistake, 129 SIGHUP, 130 Ctrl-C,
143 SIGTERM.
"""

import errno
import os
import signal
import sys
import traceback
from pathlib import Path

import trio

from ..errors import ConfigError, HeadraceError, describe, innermost, leaves, ours_in

USERS_MISTAKE = 2
INNERMOST_FRAMES = 8  # of what went wrong, shown to people
# Of a disk that is full, over a quota or a limit, or read-only: no code is to blame.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def say(text: str) -> None:
    """Print at the end of a run, which is no failure if nobody listens any more."""
    try:
        print(text, flush=True)
    except OSError:
        give_up_output()


def finish(
    where: Path, interrupted_by: signal.Signals | None, after: str, *, stopped: str = ""
) -> int:
    """Say where a run's results are and what to do next; return the exit code.

    Args:
      after: what to say of a run that has come to its end, behind the place.
      stopped: the same of one that was ended by a signal.
    """
    if interrupted_by is not None:
        say(f"Stopped by {interrupted_by.name}; what was done so far is in {where}")
        if stopped:
            say(stopped)
        return 128 + interrupted_by
    say(f"Done. The run is in {where}:\n{after}")
    return 0


def give_up_output() -> None:
    """Write to nowhere: the interpreter flushes once more at its exit, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def mistake(text: str) -> int:
    """Say what the user should change; the exit code of that."""
    print(f"headrace: {text}", file=sys.stderr)
    return USERS_MISTAKE


def say_how_to_go_on(where: Path, updates: int | None) -> None:
    """Say after an error what there is of a run.

    Args:
      updates: until its last checkpoint; None: there is none.
    """
    saved, on = f"what was learnt until update {updates} is saved", "go on"
    if updates is None:
        saved, on = "there is no checkpoint yet", "begin again"
    print(f"headrace: {saved}; mend that, then {on}: headrace resume {where}", file=sys.stderr)


def explain(error: BaseException) -> int:
    """Say in one message what ended the run; raise what is nobody's expected error."""
    ours = list(ours_in(error))
    if not ours:
        return _explain_foreign(error)
    # Those who waited for a stage that died fail too; the one that died is the news.
    cause = min(ours, key=_is_consequence)
    if isinstance(cause, ConfigError):
        return mistake(str(cause))
    if cause.__cause__ is not None and not list(ours_in(cause.__cause__)):
        _print_place(innermost(cause.__cause__))
    print(f"headrace: {cause}", file=sys.stderr)
    return 1


def _explain_foreign(error: BaseException) -> int:
    """Say what ended the run where it is no error of a stage, such as a SystemExit."""
    news = [leaf for leaf in leaves(error) if not isinstance(leaf, trio.Cancelled)]
    cause = news[0] if news else error
    if isinstance(cause, KeyboardInterrupt):
        raise cause
    _print_place(cause)
    notes: list[str] = vars(cause).get("__notes__", [])
    where = f" ({notes[0]})" if notes else ""
    print(f"headrace: {describe(cause)}{where}", file=sys.stderr)
    return 1


def _print_place(error: BaseException) -> None:
    """Say where something unexpected happened."""
    if not (isinstance(error, OSError) and error.errno in _DISK_ERRORS):
        traceback.print_exception(error, limit=-INNERMOST_FRAMES, chain=False)


def _is_consequence(error: HeadraceError) -> bool:
    return isinstance(innermost(error.__cause__ or error), trio.ClosedResourceError)
