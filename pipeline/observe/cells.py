"""The parts of the live panel: pure functions to styled text; a missing number is a dash."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from .graphs import NOTHING, duration, number, sparkline
from .sinks import Scalar

Line = list[tuple[str, str]]  # pieces of text, each with a rich style

FRAME, NAME, VALUE = "bright_black", "dim", "bold"
_GOOD, _NEUTRAL, _BUSY = "green", "cyan", "magenta"
_WARNING, _ERROR = "yellow", "bold red"
_NAME_WIDTH = 10
_VALUE_WIDTH = 8
_SHORTEST_BAR = 6


@dataclass(frozen=True)
class Progress:
    """How far something is; `seconds_left` is None while nobody can tell."""

    label: str
    done: int
    total: int
    seconds_left: float | None = None


def progress_count(state: Progress) -> Line:
    """Return the two numbers alone."""
    return [(f"{state.done}/{state.total}", VALUE)]


def progress(state: Progress, width: int) -> Line:
    """Draw a progress bar; where there is little room the time left goes first."""
    share = min(max(state.done / state.total, 0.0), 1.0) if state.total > 0 else 0.0
    is_done = share >= 1
    head: Line = [
        (f"{_name(state.label)} ", NAME),
        (f"{f'{state.done}/{state.total}':>{_VALUE_WIDTH}}  ", VALUE),
    ]
    percent: Line = [(f"  {_percent(share)}", "")]
    left: Line = []
    if state.seconds_left is not None and not is_done:
        left = [(f"  {duration(state.seconds_left)} left", NAME)]
    if length([*head, *percent, *left]) + _SHORTEST_BAR > width:
        left = []
    size = max(width - length([*head, *percent, *left]), 0)
    return [*head, *bar(share, _GOOD if is_done else _NEUTRAL, width=size), *percent, *left]


def curve(
    name: str,
    record: Mapping[str, Scalar],
    values: Sequence[float],
    width: int,
    *,
    low: float | None = None,
    high: float | None = None,
) -> Line:
    """Show a number and how it went over the whole run; `low` and `high` fix the scale."""
    head = quantity(name, record, name)
    room = width - length(head) - 2
    drawn = sparkline(values, width=room, low=low, high=high)
    return [*head, ("  ", ""), (drawn, _GOOD if name == "success" else _WARNING)]


def quantity(label: str, record: Mapping[str, Scalar], key: str) -> Line:
    """Show one number."""
    return [(f"{_name(label)} ", NAME), (f"{number(_find(record, key)):>{_VALUE_WIDTH}}", VALUE)]


def lag(record: Mapping[str, Scalar]) -> Line:
    """Show mean and largest lag beside the bound that was promised."""
    largest, bound = _find(record, "lag_max"), _find(record, "lag_bound")
    is_broken = largest is not None and bound is not None and largest > bound
    return [
        *quantity("lag", record, "lag_mean"),
        ("  max ", NAME),
        (_count(largest), _ERROR if is_broken else VALUE),
        (" of ", NAME),
        (_count(bound), VALUE),
    ]


def busy(stage: str, record: Mapping[str, Scalar], width: int) -> Line:
    """Show which share of the time a stage works, as a bar as long as there is room."""
    share = _find(record, f"{stage}_busy")
    percent = f"{NOTHING:>5}" if share is None else _percent(share)
    size = max(width - _NAME_WIDTH - len(percent) - 3, 0)
    drawn = bar(share or 0.0, _BUSY, width=size)
    return [(f"{_name(stage)} ", NAME), *drawn, (f"  {percent}", VALUE)]


def bar(share: float, style: str, *, width: int) -> Line:
    """Draw a share of 0 to 1 as a thick line on a thin one, exactly `width` long.

    Example:
      >>> bar(0.5, "cyan", width=4)
      [('━━', 'cyan'), ('──', 'bright_black')]
    """
    filled = round(min(max(share, 0.0), 1.0) * width)
    return [("━" * filled, style), ("─" * (width - filled), FRAME)]


def counts(record: Mapping[str, Scalar], width: int) -> Line:
    """Show how many episodes and groups there are, and what was lost."""
    wide = width >= 66
    line: Line = []
    for key, label, alarm in (
        ("episodes_in_flight", "episodes in flight" if wide else "running", ""),
        ("ready_groups", "groups ready" if wide else "ready", ""),
        ("dropped", "dropped", _WARNING),
        ("failures", "failures" if wide else "failed", _ERROR),
    ):
        value = _find(record, key)
        style = alarm if value else ""
        separator: Line = [(" · ", FRAME)] if line else []
        line += [*separator, (_count(value), style or VALUE), (f" {label}", style or NAME)]
    return line


def edge(corners: tuple[str, str], left: Line, right: Line, *, width: int) -> Line:
    """Draw a border with text in it; the right text goes first where both don't fit."""
    start, end = corners
    room = width - cell_len(start) - cell_len(end)
    if length(left) + length(right) > room:
        right = []
    if length(left) > room:
        left = fit(left, room)
    rule = "─" * (room - length(left) - length(right))
    return [(start, FRAME), *left, (rule, FRAME), *right, (end, FRAME)]


def fit(line: Line, width: int) -> Line:
    """Crop or pad to exactly `width` cells."""
    kept: Line = []
    for text, style in line:
        size = cell_len(text)
        if size > width:
            kept.append((set_cell_size(text, width), style))
            return kept
        kept.append((text, style))
        width -= size
    kept.append((" " * width, ""))
    return kept


def length(line: Line) -> int:
    """Return the width of a line in terminal cells."""
    return sum(cell_len(text) for text, _ in line)


def printable(text: str) -> str:
    """Replace what would move the cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _name(label: str) -> str:
    return f"{printable(label):<{_NAME_WIDTH}}"


def _percent(share: float) -> str:
    return f"{round(100 * share):>3} %"


def _count(value: float | None) -> str:
    """Counts may come as floats: show them without digits behind the point."""
    return NOTHING if value is None else number(round(value))


def _find(record: Mapping[str, Scalar], key: str) -> float | None:
    """Return a finite number, or None."""
    value = record.get(key)
    if value is None or isinstance(value, str) or not abs(value) < float("inf"):
        return None
    return value
