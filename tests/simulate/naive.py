"""The sampler's engine once more, one decode step at a time: what `decoding` jumps over."""

from dataclasses import dataclass, field


@dataclass
class NaiveJob:
    name: int
    key: int
    priority: int
    context: int
    left: int
    pinned: int | None = None
    cancelled: bool = False
    versions: list = field(default_factory=list)
    row_seconds: float = 0.0
    done_at: float | None = None
    arrival: int = 0

    @property
    def order(self):
        return (self.priority, self.arrival)


class Naive:
    """`events` are (time, what, argument) in order: submit a job, cancel a name, publish."""

    def __init__(self, costs, events):
        self.costs, self.events = costs, list(events)
        self.clock, self.version, self.preemptions = 0.0, None, 0
        self.recompute_seconds = self.idle_seconds = self.pause_seconds = 0.0
        self.rows, self.waiting, self.jobs = [], [], {}
        self.cached, self.computed = {}, {}  # by key; the oldest first
        self.to_publish = None

    def go(self):
        while self.events or self.rows or self.waiting:
            self._see_events()
            self._finish()
            if self.to_publish is not None:
                self.clock += self.costs.publish_seconds
                self.pause_seconds += self.costs.publish_seconds
                self.version, self.to_publish = self.to_publish, None
                continue
            self._relieve()
            if self._assign():
                continue
            if self.rows:
                self._step()
            elif self.events:
                self._spend(self.events[0][0] - self.clock)
                self.clock = self.events[0][0]
            else:
                break
        return self

    def _see_events(self):
        while self.events and self.events[0][0] <= self.clock:
            _, what, argument = self.events.pop(0)
            if what == "submit":
                argument.arrival = len(self.jobs)
                self.jobs[argument.name] = argument
                self.waiting.append(argument)
            elif what == "publish":
                self.to_publish = argument
            elif argument in self.jobs:
                self.jobs[argument].cancelled = True

    def _finish(self):
        done = [job for job in self.rows if job.left == 0]
        for job in sorted(done, key=lambda job: job.arrival):
            self._leave(job, keep=not job.cancelled)
            if not job.cancelled:
                job.done_at = self.clock
        for job in [job for job in self.rows if job.cancelled]:
            self._leave(job, keep=False)
        self.waiting = [job for job in self.waiting if not job.cancelled]

    def _leave(self, job, *, keep):
        self.rows.remove(job)
        self.computed[job.key] = job.context
        if keep and self.costs.prefix_reuse:
            self.cached.pop(job.key, None)
            self.cached[job.key] = job.context

    def _free(self):
        return self.costs.kv_tokens - self._used() - sum(self.cached.values())

    def _used(self):
        return sum(job.context for job in self.rows)

    def _relieve(self):
        while self.costs.kv_tokens is not None and self._free() < len(self.rows):
            if self.cached:
                del self.cached[next(iter(self.cached))]
            else:
                youngest = max(self.rows, key=lambda job: job.order)
                self._leave(youngest, keep=False)
                self.waiting.append(youngest)
                self.preemptions += 1

    def _assign(self):
        """True if time passed."""
        fresh = again = 0
        while self.waiting and self.version is not None:
            job = min(self.waiting, key=lambda job: job.order)
            if not self._fits(job):
                break
            own = self.cached.pop(job.key, None)
            if own is not None:
                self.cached[job.key] = own
            while self.costs.kv_tokens is not None and self._free() + (own or 0) < (
                job.context + 1 + len(self.rows)
            ):
                del self.cached[next(iter(self.cached))]
            cached = min(job.context, self.cached.pop(job.key, 0))
            missing = job.context - cached
            repeated = min(missing, max(self.computed.pop(job.key, 0) - cached, 0))
            fresh, again = fresh + missing - repeated, again + repeated
            self.waiting.remove(job)
            self.rows.append(job)
        seconds = self.costs.prefill_token_seconds
        self._spend(fresh * seconds)
        self.recompute_seconds += again * seconds * len(self.rows)
        self.idle_seconds += again * seconds * (self.costs.rows - len(self.rows))
        self.clock += (fresh + again) * seconds
        return (fresh + again) * seconds > 0

    def _fits(self, job):
        if len(self.rows) >= self.costs.rows:
            return False
        limit = self.costs.kv_tokens
        margin = int(0.01 * limit) if limit is not None and self.rows else 0
        needed = job.context + 1 + len(self.rows) + margin
        return limit is None or self._used() + needed <= limit

    def _step(self):
        costs = self.costs
        versions = {self.version if job.pinned is None else job.pinned for job in self.rows}
        seconds = (
            len(versions) * costs.dispatch_seconds
            + len(self.rows) * costs.row_seconds
            + self._used() * costs.kv_token_seconds
        )
        self._spend(seconds)
        self.clock += seconds
        for job in self.rows:
            job.versions.append(self.version if job.pinned is None else job.pinned)
            job.context += 1
            job.left -= 1

    def _spend(self, seconds):
        for job in self.rows:
            job.row_seconds += seconds
        self.idle_seconds += (self.costs.rows - len(self.rows)) * seconds
