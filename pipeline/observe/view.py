"""What a person sees while a run goes on: a live panel, or plain lines.

A view only shows. Missing numbers are shown as a dash and unknown ones are ignored, so a
record can never end a run; nor can a stream that breaks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TextIO, cast

from rich.console import Console

from .graphs import NOTHING, number
from .live import LiveView
from .output import ForgivingStream
from .sinks import Record

ViewKind = Literal["auto", "live", "plain"]

Columns = Sequence[tuple[str, str, int]]
"""Of a line: the name in the record, the label, the width of the number."""

COLUMNS: Columns = (
    ("reward", "reward", 6),
    ("success", "success", 5),
    ("lag_mean", "lag", 5),
    ("lag_max", "max", 2),
    ("tokens_per_second", "tokens/s", 5),
    ("trajectories_per_hour", "trajectories/h", 5),
    ("sampler_busy", "sampler", 5),
    ("learner_busy", "learner", 5),
    ("episodes_in_flight", "in flight", 3),
)
_SECONDS_BETWEEN_PHASE_LINES = 10.0


class View(Protocol):
    """Shows one run; all calls come from one thread."""

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Say what the run is doing, and how far that is."""
        ...

    def step(self, record: Record) -> None:
        """Show the numbers of one update."""
        ...

    def note(self, text: str) -> None:
        """Print a line that stays."""
        ...

    def refresh(self) -> None:
        """Bring clocks up to date; call it as often as you like."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was; a second call does nothing."""
        ...


class PlainView:
    """One aligned line of ASCII for each update, for logs and pipes."""

    def __init__(
        self,
        total_steps: int,
        *,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        columns: Columns = COLUMNS,
    ):
        self._total_steps = total_steps
        self._stream = stream
        self._clock = clock
        self._columns = columns
        self._phase = ""
        self._phase_seconds = 0.0

    def phase(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Print a new phase at once, its progress every ten seconds and at its end."""
        now = self._clock()
        is_due = now - self._phase_seconds >= _SECONDS_BETWEEN_PHASE_LINES
        has_news = done is not None and (is_due or done == total)
        if text == self._phase and not has_news:
            return
        self._phase, self._phase_seconds = text, now
        self.note(text if done is None else f"{text} {done}/{total}")

    def step(self, record: Record) -> None:
        """Print one line."""
        width = len(str(self._total_steps))
        cells = [f"step {record.get('step', '-'):>{width}}/{self._total_steps}"]
        for name, label, size in self._columns:
            cells.append(f"{label} {_ascii_number(record.get(name)):>{size}}")
        self.note("  ".join(cells))

    def note(self, text: str) -> None:
        """Print a line."""
        self._stream.write(text + "\n")
        self._stream.flush()

    def refresh(self) -> None:
        """Do nothing: lines have no clock."""

    def close(self) -> None:
        """Do nothing: the stream belongs to the caller."""


@contextmanager
def open_view(
    recipe: str,
    total_steps: int,
    *,
    done: int = 0,
    stream: TextIO | None,
    kind: ViewKind = "auto",
    columns: Columns = COLUMNS,
) -> Iterator[View]:
    """Open a view of a run; the terminal is restored on every way out of the block.

    Args:
      recipe: its name, for the title.
      total_steps: how many updates there will be.
      done: how many there were already.
      stream: where to show it; nothing is shown on None, or once it breaks.
      kind: `auto` is the live panel on a terminal that can show it, plain lines elsewhere.
        Where the encoding isn't a UTF, `live` gives plain lines too.
      columns: of plain lines.
    """
    view: View
    output = cast(TextIO, ForgivingStream(stream))
    is_live = kind == "live" or (kind == "auto" and _is_full_terminal(output))
    if is_live and output.encoding.lower().startswith("utf"):
        view = LiveView(recipe, total_steps, done=done, stream=output)
    else:
        view = PlainView(total_steps, stream=output, columns=columns)
    try:
        yield view
    finally:
        view.close()


def _is_full_terminal(stream: TextIO) -> bool:
    return stream.isatty() and not Console(file=stream).is_dumb_terminal


def _ascii_number(value: float | int | str | None) -> str:
    if isinstance(value, str):
        return value
    return number(value).replace(NOTHING, "-")
