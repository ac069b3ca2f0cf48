"""The simulated sampler's engine: rows, cache and time, without a clock or tasks of its own.

Invariant: between two boundaries of interest (something arrives, finishes, is cancelled or
published, or the cache is full) all busy rows make the same steps, so any number of them is one
closed-form jump: with r rows that hold k tokens, n steps take

  n * (versions * a + r * b) + c * (n * k + r * n * (n - 1) / 2).

The engine's own clock stands at a boundary between two steps, which may lie ahead of the caller's
by less than a step. What arrives in a step is seen at its end. Every row second since 0 is
accounted for once: held by a job, idle for a reason, paused for a publish, or recomputation.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from operator import attrgetter

from .jobs import Job, JobQueue, Place, PrefixCache
from .speeds import SamplerCosts

_ROUNDING_STEPS = 1e-6  # an instant that is so little after a boundary is at the boundary
_WATERMARK = 0.01  # of the cache stays free when a job joins others, or it would soon be out again
MEMORY = "memory"


class Decoder:
    """Rows and the jobs in them.

    The caller tells what happens (`submit`, `cancel`, `publish`), calls `settle(now)` when an
    instant is complete, and again at `next_event`.

    Attributes:
      clock: virtual seconds of the boundary settled last.
      step: decode steps so far.
      published: (step, version): from this step on, this version samples. In order.
      waiting: jobs without a row.
      idle_seconds: row seconds without a job, by reason, pauses left out.
      recompute_seconds: row seconds in which tokens were prefilled that had been before.
      pause_seconds: how long publishes took.
      preemptions: how often a job lost its row since the cache was full.
    """

    def __init__(self, costs: SamplerCosts, *, why_idle: Callable[[], str] = str):
        """Args:
        why_idle: names the reason why rows are free, for the time from now on.
        """
        self.clock = 0.0
        self.step = 0
        self.published: list[tuple[int, int]] = []
        self.waiting = JobQueue()
        self.idle_seconds: defaultdict[str, float] = defaultdict(float)
        self.recompute_seconds = 0.0
        self.pause_seconds = 0.0
        self.preemptions = 0
        self._costs = costs
        self._why_idle = why_idle
        self._reason = ""
        self._work_seconds = 0.0
        self._active: dict[int, Job] = {}
        self._finishes: list[tuple[int, int, Job]] = []
        self._leaving: list[Job] = []
        self._pinned: Counter[int | None] = Counter()
        self._kv_tokens = 0
        self._prefixes = PrefixCache(reuse=costs.prefix_reuse)
        self._asked: int | None = None  # the version whose publish waits for a boundary
        self._pausing: int | None = None  # the version that is in use after the pause

    @property
    def version(self) -> int | None:
        """The version in use; None before the first publish."""
        return self.published[-1][1] if self.published else None

    @property
    def rows_busy(self) -> int:
        """Jobs with a row."""
        return len(self._active)

    @property
    def cache_share(self) -> float:
        """How much of the cache the busy rows' tokens fill, 0..1."""
        limit = self._costs.kv_tokens
        return 0.0 if limit is None else min(1.0, self._kv_tokens / limit)

    # What happens. Nothing takes effect before `settle`.

    def submit(self, job: Job) -> None:
        """Let a job wait for a row."""
        self.waiting.push(job)

    def cancel(self, job: Job) -> None:
        """Take a job out, from its row at the next boundary; nothing if it has left."""
        if job.place is Place.WAITING:
            self.waiting.cancel(job)
        elif job.place is Place.ACTIVE:
            job.place = Place.LEAVING
            self._leaving.append(job)

    def publish(self, version: int) -> None:
        """Ask for new weights at the next boundary; `version` tells when they are in use."""
        self._asked = version

    def settle(self, now: float) -> list[Job]:
        """Take note of all that happened up to `now`; return the jobs that left their rows.

        A job among them is finished if nothing of it is left, else it was cancelled.
        """
        left: list[Job] = []
        while self.clock < now:
            self._advance(now)
            if self.clock < now:
                left += self._retire()
        if self.clock == now:
            left += self._open_boundary()
        self._reason = MEMORY if self._is_full() else self._why_idle()
        return left

    def next_event(self) -> float:
        """Return when `settle` must be called if nothing happens before; inf for never."""
        unseen = self._leaving or self._asked is not None or self._pausing is not None
        if unseen or self._fits(self.waiting.first()):
            return self.clock
        if not self._active:
            return math.inf
        return self.clock + self._seconds(self._steps_ahead())

    def release_all(self) -> list[Job]:
        """Take every job out of its row at once; return those that had one."""
        return [self._leave(job) for job in list(self._active.values())]

    # Time.

    def _advance(self, now: float) -> None:
        """Make steps towards `now`, not beyond one after which much changes."""
        seconds = now - self.clock
        steps = self._steps_within(seconds) if self._active else 0
        if steps == 0:
            self._pass(seconds)
            self.clock = now
            return
        seconds = self._seconds(steps)
        self._pass(seconds)
        self.clock += seconds
        self.step += steps
        self._kv_tokens += steps * len(self._active)

    def _pass(self, seconds: float) -> None:
        self._work_seconds += seconds
        if self._costs.rows is not None:
            idle = self._costs.rows - len(self._active)
            self.idle_seconds[self._reason] += idle * seconds

    def _seconds(self, steps: int) -> float:
        """The closed form of the module's docstring."""
        rows, costs = len(self._active), self._costs
        constant = self._versions() * costs.dispatch_seconds + rows * costs.row_seconds
        read = steps * self._kv_tokens + rows * steps * (steps - 1) / 2
        return steps * constant + read * costs.kv_token_seconds

    def _versions(self) -> int:
        """How many versions sample: a step takes a dispatch for each."""
        both = None in self._pinned and self.version in self._pinned
        return len(self._pinned) - both

    def _steps_within(self, seconds: float) -> int:
        """The fewest steps that take so long, but not beyond `_steps_ahead`."""
        most = self._steps_ahead()
        if self._seconds(most) <= seconds:
            return most
        quadratic = len(self._active) * self._costs.kv_token_seconds / 2
        linear = self._seconds(1) - quadratic  # n steps: quadratic * n**2 + linear * n
        root = math.sqrt(linear**2 + 4 * quadratic * seconds)
        return min(most, math.ceil(2 * seconds / (linear + root) - _ROUNDING_STEPS))

    def _steps_ahead(self) -> int:
        """Steps until a job finishes or the cache is full."""
        while not self._is_current(*self._finishes[0]):
            heapq.heappop(self._finishes)
        steps = self._finishes[0][0] - self.step
        if self._costs.kv_tokens is None:
            return steps
        return min(steps, self._free_tokens(self._costs.kv_tokens) // len(self._active))

    def _is_current(self, finish: int, _: int, job: Job) -> bool:
        return job.place in (Place.ACTIVE, Place.LEAVING) and job.finish == finish

    # What changes at a boundary.

    def _open_boundary(self) -> list[Job]:
        """Do all that waits for the end of a step."""
        left = self._retire()
        left += [self._leave(job) for job in self._leaving if job.place is Place.LEAVING]
        self._leaving.clear()
        if self._pausing is not None:
            self.published.append((self.step, self._pausing))
            self._pausing = None
        if self._asked is not None:
            self._pausing, self._asked = self._asked, None
            self.clock += self._costs.publish_seconds
            self.pause_seconds += self._costs.publish_seconds
        else:
            self._relieve()
            self._assign()
        return left

    def _retire(self) -> list[Job]:
        """Take out the jobs whose last token is sampled."""
        left = []
        while self._finishes and self._finishes[0][0] <= self.step:
            entry = heapq.heappop(self._finishes)
            if self._is_current(*entry):
                left.append(self._leave(entry[2]))
        return left

    def _leave(self, job: Job) -> Job:
        """Take a job out of its row."""
        steps = self.step - job.start
        if steps:
            job.spans.append((job.start, steps))
        job.context += steps
        job.left -= steps
        job.row_seconds += self._work_seconds - job.work_began
        self._kv_tokens -= job.context
        self._prefixes.put(job.key, job.context, keep=job.place is Place.ACTIVE)
        self._unpin(job.pinned)
        del self._active[job.arrival]
        job.place = Place.GONE
        return job

    def _unpin(self, version: int | None) -> None:
        self._pinned[version] -= 1
        if not self._pinned[version]:
            del self._pinned[version]

    def _relieve(self) -> None:
        """Make room for one more step of all rows: idle prefixes go first, then the youngest."""
        limit = self._costs.kv_tokens
        while limit is not None and self._free_tokens(limit) < len(self._active):
            if self._prefixes.evict():
                continue
            youngest = max(self._active.values(), key=attrgetter("order"))
            youngest.place = Place.LEAVING  # so that nothing of it stays in the cache
            self.waiting.push(self._leave(youngest))
            self.preemptions += 1

    def _assign(self) -> None:
        """Give free rows to those who wait, and prefill what of them isn't cached."""
        fresh = again = 0
        while (job := self.waiting.first()) is not None and self._fits(job):
            self._make_room(job)
            cached, computed = self._prefixes.take(job.key)
            missing = max(job.context - cached, 0)
            repeated = min(missing, max(computed - cached, 0))
            fresh, again = fresh + missing - repeated, again + repeated
            self._start(self.waiting.pop())
        self._prefill(fresh, again)

    def _fits(self, job: Job | None) -> bool:
        """Whether there is a row and, without the idle prefixes, memory for a waiting job."""
        costs = self._costs
        if job is None or not self.published:
            return False
        if costs.rows is not None and len(self._active) >= costs.rows:
            return False
        if costs.kv_tokens is None:
            return True
        margin = int(_WATERMARK * costs.kv_tokens) if self._active else 0
        needed = job.context + 1 + len(self._active) + margin
        return self._kv_tokens + needed <= costs.kv_tokens

    def _is_full(self) -> bool:
        """Whether it is for want of memory that rows are idle."""
        first, rows, limit = self.waiting.first(), self._costs.rows, self._costs.kv_tokens
        limited = rows is not None and limit is not None and len(self._active) < rows
        return limited and first is not None and not self._fits(first)

    def _make_room(self, job: Job) -> None:
        """Give up idle prefixes for a job that fits without them, its own one last."""
        limit = self._costs.kv_tokens
        own = self._prefixes.touch(job.key)
        needed = job.context + 1 + len(self._active) - own
        while limit is not None and self._free_tokens(limit) < needed:
            self._prefixes.evict()

    def _start(self, job: Job) -> None:
        job.place = Place.ACTIVE
        job.start = self.step
        job.work_began = self._work_seconds
        self._active[job.arrival] = job
        self._pinned[job.pinned] += 1
        self._kv_tokens += job.context
        heapq.heappush(self._finishes, (job.finish, job.arrival, job))

    def _prefill(self, fresh: int, again: int) -> None:
        """Let all rows wait while prompts are computed."""
        seconds = fresh * self._costs.prefill_token_seconds
        self._pass(seconds)
        lost = again * self._costs.prefill_token_seconds
        self.recompute_seconds += lost * len(self._active)
        if self._costs.rows is not None:
            self.idle_seconds[self._reason] += lost * (self._costs.rows - len(self._active))
        self.clock += seconds + lost

    def _free_tokens(self, limit: int) -> int:
        return limit - self._kv_tokens - self._prefixes.tokens
