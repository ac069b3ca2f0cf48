"""A scatter picture as lines of text. Pure functions of the points.

The axes start at zero, so that distances mean what they seem to. All characters used are one
terminal cell wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One point of a picture.

    Attributes:
      x: >= 0 and finite.
      y: >= 0 and finite.
      level: 0, 1, …: which entry of a legend it belongs to.
      kind: `rest`, `best` (on the frontier) or `chosen`.
      text: what a picture says of it where there is room.
    """

    x: float
    y: float
    level: int = 0
    kind: str = "rest"
    text: str = ""


@dataclass(frozen=True)
class Axes:
    """What the axes mean, and the entries of the legend by level.

    Attributes:
      y_percent: whether the vertical axis shows shares as per cent.
    """

    x_label: str
    y_label: str
    levels: tuple[str, ...] = ()
    title: str = ""
    y_percent: bool = False


SYMBOLS = {"rest": "·", "best": "●", "chosen": "◆"}  # a later kind covers an earlier one
_Y_LABEL_WIDTH = 7
_ROUNDING = 1e-9  # no picture shows differences as small as this


def draw_text(points: Sequence[Point], axes: Axes, *, width: int, height: int) -> list[str]:
    r"""Draw the points as `height` lines of at most `width` characters.

    Args:
      points: at least one; of those in one cell, the chosen is shown, else one of the best.
      width: >= 24 and the label of the horizontal axis.
      height: >= 6, axes and labels included.

    Example:
      >>> corners = [Point(0, 0), Point(10, 5, kind="best")]
      >>> print("\n".join(draw_text(corners, Axes("lag", "rate"), width=28, height=6)))
      rate
          5 ┤                ●
            │
          0 ┤·
            └┬───────┬───────┬
             0       5      10 lag
    """
    columns, rows = width - _Y_LABEL_WIDTH - 1 - len(axes.x_label), height - 3
    x_ticks = ticks(max(point.x for point in points), most=columns // 8)
    y_ticks = ticks(max(point.y for point in points), most=(rows - 1) // 2)
    cells = _cells(points, (x_ticks[-1], y_ticks[-1]), columns=columns, rows=rows)
    marks = {round((rows - 1) * (1 - y / y_ticks[-1])): y for y in y_ticks}
    lines = [axes.y_label]
    for row, cell_row in enumerate(cells):
        label = tick_label(marks[row], percent=axes.y_percent) if row in marks else ""
        edge = "┤" if row in marks else "│"
        lines.append(f"{label:>{_Y_LABEL_WIDTH - 2}} {edge}{''.join(cell_row)}".rstrip())
    return [*lines, *_x_axis(x_ticks, axes.x_label, columns=columns)]


def _cells(
    points: Sequence[Point], largest: tuple[float, float], *, columns: int, rows: int
) -> list[list[str]]:
    cells = [[" "] * columns for _ in range(rows)]
    for kind, symbol in SYMBOLS.items():
        for point in points:
            if point.kind == kind:
                column = round((columns - 1) * point.x / largest[0])
                row = round((rows - 1) * (1 - point.y / largest[1]))
                cells[row][column] = symbol
    return cells


def _x_axis(ticks: Sequence[float], label: str, *, columns: int) -> list[str]:
    line, labels = ["─"] * columns, [" "] * (columns + 1)
    for tick in ticks:
        column = round((columns - 1) * tick / ticks[-1])
        line[column] = "┬"
        text = tick_label(tick)
        start = min(max(column - len(text) // 2, 0), columns - len(text))
        labels[start : start + len(text)] = text
    margin = " " * (_Y_LABEL_WIDTH - 1)
    return [f"{margin}└{''.join(line)}", f"{margin} {''.join(labels)}{label}"]


def ticks(largest: float, *, most: int) -> list[float]:
    """Return round numbers from 0 to at least `largest`, equally far apart.

    Args:
      largest: >= 0.
      most: at most so many steps, >= 1.

    Example:
      >>> ticks(16.3, most=5)
      [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    if largest < _ROUNDING:  # all at the origin
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(largest))
    steps = (power * factor for factor in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0))
    step = next(step for step in steps if math.ceil(largest / step - _ROUNDING) <= most)
    return [step * index for index in range(math.ceil(largest / step - _ROUNDING) + 1)]


def tick_label(value: float, *, percent: bool = False) -> str:
    """Write the value of a tick.

    Example:
      >>> tick_label(0.25), tick_label(0.25, percent=True)
      ('0.25', '25%')
    """
    return f"{value:.0%}" if percent else f"{value:.4g}"
