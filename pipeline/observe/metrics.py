"""Rates of cumulative totals over a sliding window. Plain Python; the caller brings the time.

A busy share is the rate of cumulative busy seconds: seconds of work per second.
"""

import resource
import sys
from collections import deque
from collections.abc import Mapping


class Rates:
    """Turns cumulative totals into rates per second over the last `window_seconds`.

    The oldest reading kept is the newest one that is at least `window_seconds` old, so a rate
    always covers the whole window once the run is that old.

    Example:
      >>> rates = Rates(window_seconds=10.0)
      >>> rates.update({"tokens": 0.0, "busy": 0.0}, now_seconds=100.0)
      {'tokens': 0.0, 'busy': 0.0}
      >>> rates.update({"tokens": 400.0, "busy": 1.0}, now_seconds=104.0)
      {'tokens': 100.0, 'busy': 0.25}
    """

    def __init__(self, *, window_seconds: float = 20.0):
        self._window_seconds = window_seconds
        self._readings: deque[tuple[float, dict[str, float]]] = deque()

    def update(self, totals: Mapping[str, float], *, now_seconds: float) -> dict[str, float]:
        """Add a reading and return the rates; 0 where no time has passed.

        Args:
          totals: cumulative, non-decreasing; a name seen for the first time counts from here.
          now_seconds: a monotonic clock.
        """
        self._readings.append((now_seconds, dict(totals)))
        while len(self._readings) > 2 and self._is_old(self._readings[1][0], now_seconds):
            self._readings.popleft()
        then_seconds, before = self._readings[0]
        elapsed = now_seconds - then_seconds
        if elapsed <= 0:
            return dict.fromkeys(totals, 0.0)
        return {
            name: (total - before.get(name, total)) / elapsed for name, total in totals.items()
        }

    def _is_old(self, then_seconds: float, now_seconds: float) -> bool:
        return now_seconds - then_seconds >= self._window_seconds


def peak_rss_bytes() -> int:
    """Return the largest resident memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
