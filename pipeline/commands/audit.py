"""`headrace audit`: the log of what a run's sandboxes executed."""

from collections.abc import Sequence
from pathlib import Path

from ...envs.sandbox.audit import audit_run
from .messages import mistake, say


def audit(run_folder: str, flags: Sequence[str]) -> int:
    """Check the log of a run; there are no flags."""
    if flags:
        return mistake(f"audit takes one run directory, got also {' '.join(flags)}")
    try:
        say(audit_run(Path(run_folder)))
    except (OSError, ValueError) as error:
        return mistake(str(error))
    return 0
