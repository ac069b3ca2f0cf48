"""Lays out the live panel: a pure function from what is known of a run to lines of text.

All lines are equally wide, and there are never more or wider ones than asked for, whatever the
size of the terminal: what matters least goes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from . import cells
from .cells import Line
from .graphs import duration
from .sinks import Scalar

WIDEST = 100
_NARROWEST, _LOWEST = 16, 3
_BORDER_WIDTH = 6  # two lines, and two blanks beside each
_TWO_COLUMNS_FROM = 66


@dataclass(frozen=True)
class PanelContent:
    """What the panel shows.

    Attributes:
      progress: of the phase, or of the whole run.
      record: the newest numbers.
      rewards: the whole run's, oldest first; so are `successes`.
    """

    recipe: str
    phase: str
    progress: cells.Progress
    elapsed_seconds: float
    record: Mapping[str, Scalar] = field(default_factory=dict)
    rewards: Sequence[float] = ()
    successes: Sequence[float] = ()


def render_panel(content: PanelContent, *, width: int, height: int) -> list[Line]:
    """Return the lines for a terminal of `width` cells and `height` lines."""
    width = min(width, WIDEST)
    if width < _NARROWEST or height < _LOWEST:
        tiny = cells.fit(cells.progress_count(content.progress), width)
        return [tiny][: max(height, 0)]
    inside = width - _BORDER_WIDTH
    middle = [
        [("│  ", cells.FRAME), *cells.fit(line, inside), ("  │", cells.FRAME)]
        for line in _most_important(_ranked_lines(content, inside), height - 2)
    ]
    return [_top(content, width), *middle, _bottom(content, width)]


def _ranked_lines(content: PanelContent, width: int) -> list[tuple[int, Line]]:
    """Return all lines in the order shown, each with its rank: 0 stays longest."""
    record = content.record
    curves = [
        (1, cells.curve("success", record, content.successes, width, low=0.0, high=1.0)),
        (2, cells.curve("reward", record, content.rewards, width)),
    ]
    numbers = (
        _two_columns(record, width) if width >= _TWO_COLUMNS_FROM else _one_column(record, width)
    )
    return [
        (13, []),
        (0, cells.progress(content.progress, width)),
        (11, []),
        *curves,
        (12, []),
        *((3 + order, line) for order, line in enumerate(numbers)),
        (10, []),
        (9, cells.counts(record, width)),
        (14, []),
    ]


def _most_important(ranked: Sequence[tuple[int, Line]], count: int) -> list[Line]:
    kept = set(sorted(rank for rank, _ in ranked)[:count])
    return [line for rank, line in ranked if rank in kept]


def _two_columns(record: Mapping[str, Scalar], width: int) -> list[Line]:
    gap = 4
    left, right = (width - gap) // 2, width - gap - (width - gap) // 2
    pairs = (
        (cells.lag(record), cells.busy("sampler", record, right)),
        (
            cells.quantity("tokens/s", record, "tokens_per_second"),
            cells.busy("learner", record, right),
        ),
        (
            cells.quantity("episodes/h", record, "trajectories_per_hour"),
            cells.quantity("entropy", record, "entropy"),
        ),
    )
    return [[*cells.fit(one, left + gap), *cells.fit(other, right)] for one, other in pairs]


def _one_column(record: Mapping[str, Scalar], width: int) -> list[Line]:
    return [
        cells.lag(record),
        cells.busy("sampler", record, width),
        cells.busy("learner", record, width),
        cells.quantity("tokens/s", record, "tokens_per_second"),
        cells.quantity("episodes/h", record, "trajectories_per_hour"),
    ]


def _top(content: PanelContent, width: int) -> Line:
    title = [(" headrace ", "bold cyan"), (f"{cells.printable(content.recipe)} ", "bold")]
    phase = [(f" {cells.printable(content.phase)} ", "cyan")] if content.phase else []
    return cells.edge(("╭─", "─╮"), title, phase, width=width)


def _bottom(content: PanelContent, width: int) -> Line:
    elapsed = [(f" {duration(content.elapsed_seconds)} ", cells.NAME)]
    return cells.edge(("╰─", "─╯"), [], elapsed, width=width)
