"""One request in the simulated engine, and the order in which those that wait get a row."""

import enum
import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field


class Place(enum.Enum):
    """Where a job is."""

    WAITING = enum.auto()
    ACTIVE = enum.auto()
    LEAVING = enum.auto()  # cancelled in the middle of a step
    GONE = enum.auto()


@dataclass(slots=True, eq=False)
class Job:
    """One request.

    Attributes:
      key: names the trajectory, whose earlier turns may be in the cache.
      priority: smaller numbers get a row first; of equal ones, who came first.
      context: tokens when it last came to a row or left one.
      left: tokens that were still to be sampled then.
      pinned: the version that samples all of it; None for the newest at each step.
      spans: the steps in which it had a row, as (first step, steps).
      row_seconds: how long it held a row, pauses and recomputation left out.
      start: the step at which it got its row.
      work_began: the engine's working time then.
    """

    key: Hashable
    priority: int
    context: int
    left: int
    pinned: int | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    row_seconds: float = 0.0
    place: Place = Place.WAITING
    arrival: int = -1
    start: int = 0
    work_began: float = 0.0

    @property
    def finish(self) -> int:
        """The step before which all is sampled, if it keeps its row."""
        return self.start + self.left

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: smaller ones."""
        return self.priority, self.arrival


class JobQueue:
    """Jobs that wait, in their order. Those cancelled are skipped when their turn comes."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Job]] = []
        self._arrivals = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, job: Job) -> None:
        """Let a job wait; one that comes back keeps the place of its first arrival."""
        if job.arrival < 0:
            job.arrival = self._arrivals
            self._arrivals += 1
        job.place = Place.WAITING
        heapq.heappush(self._heap, (job.order, job))
        self._size += 1

    def first(self) -> Job | None:
        """Return the job whose turn it is, or None."""
        while self._heap and self._heap[0][1].place is not Place.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Job:
        """Take out the job that `first` returned."""
        self._size -= 1
        return heapq.heappop(self._heap)[1]

    def cancel(self, job: Job) -> None:
        """Forget a waiting job."""
        job.place = Place.GONE
        self._size -= 1
