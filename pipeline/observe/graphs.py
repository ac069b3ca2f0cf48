"""Small pictures and numbers as text. Pure functions of their arguments; every result is one line.

All characters used are one terminal cell wide.
"""

import itertools
import math
from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
NOTHING = "–"


def sparkline(
    values: Sequence[float], *, width: int, low: float | None = None, high: float | None = None
) -> str:
    """Draw values as a row of blocks, at most `width` long.

    More values than that are averaged in runs, so that the whole history is always shown.

    Args:
      values: finite, oldest first.
      low: the value of the lowest block; the smallest value drawn if None.
      high: the value of the highest block; the largest value drawn if None.

    Example:
      >>> sparkline([0.0, 0.5, 1.0], width=10)
      '▁▅█'
      >>> sparkline([0.0, 0.0, 1.0, 1.0], width=2, low=0.0, high=2.0)
      '▁▅'
    """
    points = _averaged(values, max(width, 0))
    if not points:
        return ""
    bottom = min(points) if low is None else low
    top = max(points) if high is None else high
    span = top - bottom
    if span <= 0:
        return _LEVELS[0] * len(points)
    last = len(_LEVELS) - 1
    levels = (round((point - bottom) / span * last) for point in points)
    return "".join(_LEVELS[min(max(level, 0), last)] for level in levels)


def _averaged(values: Sequence[float], count: int) -> list[float]:
    """Return the means of `count` runs of nearly equal length, or the values if they are fewer."""
    if len(values) <= count:
        return list(values)
    edges = [index * len(values) // count for index in range(count + 1)] if count else []
    return [sum(values[start:end]) / (end - start) for start, end in itertools.pairwise(edges)]


def number(value: float | None) -> str:
    """Write a number in at most eight characters for a display; a dash for None and NaN.

    Example:
      >>> [number(value) for value in (None, 3, 0.12345, 1234.5, 45678.0, 1.2e7)]
      ['–', '3', '0.123', '1,234', '45.7k', '12.0M']
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 1e9:
        return f"{value:.0e}"
    if size >= 1e6:
        return f"{value / 1e6:.1f}M"
    if size >= 1e4:
        return f"{value / 1e3:.1f}k"
    if isinstance(value, int) or size >= 100:
        return f"{value:,.0f}"
    if 0 < size < 1e-3:
        return f"{value:.0e}"
    return f"{value:.3f}" if size < 1 else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Write a duration as m:ss or h:mm:ss.

    Example:
      >>> duration(75), duration(3675)
      ('1:15', '1:01:15')
    """
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class History:
    """A bounded record of a curve: when full, neighbours are averaged and it goes on coarser.

    Memory stays below `capacity` numbers however long the run; the whole run stays in view.

    Example:
      >>> history = History(capacity=4)
      >>> for value in range(8):
      ...     history.append(float(value))
      >>> history.values()
      [0.5, 2.5, 4.5, 6.5]
    """

    def __init__(self, *, capacity: int = 128):
        self._capacity = capacity
        self._run_length = 1
        self._means: list[float] = []
        self._pending: list[float] = []

    def append(self, value: float) -> None:
        """Add the newest value; one that is not finite is left out."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._run_length:
            return
        if len(self._means) == self._capacity:
            self._coarsen()
            return
        self._means.append(sum(self._pending) / len(self._pending))
        self._pending.clear()

    def values(self) -> list[float]:
        """Return the curve, oldest first, the run that is not yet complete included."""
        if not self._pending:
            return list(self._means)
        return [*self._means, sum(self._pending) / len(self._pending)]

    def _coarsen(self) -> None:
        pairs = zip(self._means[::2], self._means[1::2], strict=True)
        self._means = [(left + right) / 2 for left, right in pairs]
        self._run_length *= 2
