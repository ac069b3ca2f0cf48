"""What Orbax and TensorStore say of files that can't be written or read, heard once."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def refusal(error: OSError | ValueError) -> str | None:
    """Say why the operating system refused to write; None: it didn't, the error is another."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"os_error_code='(\d+)'", str(error))  # as TensorStore has it
    return number and os.strerror(int(number[1]))


@contextmanager
def told_once() -> Iterator[None]:
    """Keep quiet what Orbax and TensorStore say of an error beside raising it.

    Orbax logs it, its threads with their tracebacks; TensorStore's threads complain, of each array
    that was under way, that nobody waits for it any more.
    """
    absl, before = logging.getLogger("absl"), sys.unraisablehook

    def tell_others(found: "sys.UnraisableHookArgs") -> None:
        if str(found.exc_value) != "Event loop is closed":
            before(found)

    sys.unraisablehook = tell_others
    absl.addFilter(_is_not_of_orbax)
    try:
        yield
    finally:
        absl.removeFilter(_is_not_of_orbax)
    sys.unraisablehook = before  # not after an error: those threads may be later than it


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in Path(record.pathname).parts
