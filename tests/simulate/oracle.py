"""The balanced scenario once more, in sixty lines of plain Python: no trio, no ledger.

One slot is one job. A job is admitted iff the schedule's gate is open and a slot is free; the
learner takes the B ready jobs of the oldest versions; what is too old then is thrown away.
"""

import heapq
from dataclasses import dataclass, field


@dataclass
class Oracle:
    """Run with `go`; then read the numbers."""

    slots: int
    batch: int
    eta: int
    most: int
    steps: int
    draw: object  # draw(index of the job) -> seconds
    lags: list = field(default_factory=list)
    used_seconds: float = 0.0
    lost_seconds: float = 0.0
    seconds: float = 0.0

    def go(self):
        now, version, formed, learner_free_at = 0.0, 0, 0, None
        running, ready, started = [], [], 0  # (end, index, version, begin); (version, index, s)
        while version < self.steps:
            room = (version + self.eta + 1 - formed) * self.batch - len(running) - len(ready)
            for _ in range(min(room, self.slots - len(running))):
                heapq.heappush(running, (now + self.draw(started), started, version, now))
                started += 1
            if learner_free_at is None and len(ready) >= self.batch:
                ready.sort()
                taken, ready = ready[: self.batch], ready[self.batch :]
                self.lags += [formed - began_at for began_at, _, _ in taken]
                self.used_seconds += sum(spent for _, _, spent in taken)
                formed += 1
                learner_free_at = now + self.batch / self.slots
                running, ready = self._drop(running, ready, formed, now)
                continue
            ends = running[0][0] if running else float("inf")
            if learner_free_at is not None and learner_free_at <= ends:
                now, learner_free_at, version = learner_free_at, None, version + 1
            else:
                end, index, began_at, begin = heapq.heappop(running)
                now = end
                ready.append((began_at, index, end - begin))
        self.seconds = now
        self.unfinished_seconds = sum(now - job[3] for job in running) + sum(r[2] for r in ready)
        return self

    def _drop(self, running, ready, formed, now):
        oldest = formed - self.most
        self.lost_seconds += sum(now - begin for _, _, w, begin in running if w < oldest)
        self.lost_seconds += sum(spent for w, _, spent in ready if w < oldest)
        running = [job for job in running if job[2] >= oldest]
        heapq.heapify(running)
        return running, [job for job in ready if job[0] >= oldest]

    @property
    def efficiency(self):
        ideal = max(self.used_seconds / self.slots, self.steps * self.batch / self.slots)
        return ideal / self.seconds

    @property
    def waste(self):
        return self.lost_seconds / (self.used_seconds + self.lost_seconds)
