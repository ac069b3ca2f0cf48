"""A trio run that goes on only when it is told to, so that plain functions can drive it.

Trio is the guest, the caller its host. There is no thread and no real time: the clock stands
still until the host moves it, and one task tells the host when all others are blocked.
"""

import math
from collections import deque

import trio
import trio.testing

MOST_TICKS = 20_000  # between two moments of rest; more is a loop that never blocks


class Guest:
    """Runs an async function in steps.

    Between two steps the host may set events, cancel scopes and move the clock.

    Attributes:
      outcome: of the function, once it has ended.
    """

    def __init__(self, main):
        self.outcome = None
        self._main = main
        self._clock = trio.testing.MockClock()
        self._ticks = deque()
        self._rests = False
        self._next_deadline_in = math.inf
        self._scope = trio.CancelScope()
        trio.lowlevel.start_guest_run(
            self._run,
            run_sync_soon_threadsafe=self._ticks.append,
            done_callback=self._end,
            clock=self._clock,
        )

    @property
    def over(self):
        return self.outcome is not None

    def settle(self):
        """Go on until nothing happens any more without the host."""
        self._rests = False
        for _ in range(MOST_TICKS):
            if self.over or self._rests:
                return
            self._ticks.popleft()()
        raise AssertionError("the run never comes to rest")

    def pass_time(self, seconds):
        """Go on for so long, from one deadline to the next."""
        while not self.over and self._next_deadline_in <= seconds:
            seconds -= self._jump(self._next_deadline_in)
        if not self.over:
            self._jump(seconds)

    def pass_time_to_deadline(self):
        """Go on to the next deadline, if there is one."""
        if not self.over and self._next_deadline_in < math.inf:
            self._jump(self._next_deadline_in)

    def cancel(self):
        """Cancel the function, and go on."""
        self._scope.cancel()
        self.settle()

    def _jump(self, seconds):
        # A little further, for sums of floats that end just before the deadline.
        self._clock.jump(seconds + 1e-9)
        self.settle()
        return seconds

    def _end(self, outcome):
        self.outcome = outcome

    async def _run(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_when_it_rests)
            with self._scope:
                await self._main()
            nursery.cancel_scope.cancel()

    async def _tell_when_it_rests(self):
        while True:
            await trio.testing.wait_all_tasks_blocked()
            statistics = trio.lowlevel.current_statistics()
            self._next_deadline_in = statistics.seconds_to_next_deadline
            self._rests = True
