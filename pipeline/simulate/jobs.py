"""Requests in the simulated engine: who waits for a row, and what the cache keeps of whom."""

import enum
import heapq
from collections import OrderedDict
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


_MOST_TRAJECTORIES = 2**17  # who is older than so many others won't come back


class PrefixCache:
    """Tokens by trajectory: how many were computed at some time, how many are still cached."""

    def __init__(self, *, reuse: bool):
        """Args:
        reuse: whether anything is kept at all.
        """
        self.tokens = 0
        self._reuse = reuse
        self._cached: OrderedDict[Hashable, int] = OrderedDict()
        self._computed: OrderedDict[Hashable, int] = OrderedDict()

    def put(self, key: Hashable, tokens: int, *, keep: bool) -> None:
        """Note that a trajectory's first `tokens` tokens were computed, and keep them if asked."""
        self._computed[key] = tokens
        self._computed.move_to_end(key)
        if len(self._computed) > _MOST_TRAJECTORIES:
            oldest, _ = self._computed.popitem(last=False)
            self.tokens -= self._cached.pop(oldest, 0)
        if keep and self._reuse:
            self.tokens += tokens - self._cached.pop(key, 0)
            self._cached[key] = tokens

    def take(self, key: Hashable) -> tuple[int, int]:
        """Return how many tokens are cached and how many were ever computed; keep none."""
        cached = self._cached.pop(key, 0)
        self.tokens -= cached
        return cached, self._computed.pop(key, 0)

    def touch(self, key: Hashable) -> int:
        """Make a trajectory's prefix the last to go; return its tokens."""
        if key not in self._cached:
            return 0
        self._cached.move_to_end(key)
        return self._cached[key]

    def evict(self) -> bool:
        """Give up the prefix that was used longest ago; false if there is none."""
        if not self._cached:
            return False
        _, tokens = self._cached.popitem(last=False)
        self.tokens -= tokens
        return True
