"""Virtual time: it jumps to the next thing that is due, as soon as nobody has anything to do.

Invariant: time only moves when every task is blocked and nothing is left to happen now. So an
instant is a whole: what watches or moves by time (`Timers.at_instant_end`, `Timers.on_advance`)
never sees the middle of one.

`trio.sleep` makes a cancel scope with a deadline, and an exception ends it. With thousands of
sleepers those were most of a simulation, so here a sleeper is one entry of a heap.
"""

import gc
import importlib
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TypeVar

import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

T = TypeVar("T")

_YOUNG_OBJECTS = 200_000  # made before the youngest are looked through


class Timers(trio.abc.Clock):
    """Everything that is due, and the clock that jumps to it.

    Trio asks its clock how long to sleep exactly when no task can go on, so that is when time
    moves: no task of its own is woken for that.

    Attributes:
      now: virtual seconds since the start; exactly its own time for an entry that is due.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Task | None]] = []  # when, its number, who is woken
        self._numbers = itertools.count()
        self._cancelled: set[int] = set()  # numbers of entries that nobody waits for
        self._instant_ends: list[Callable[[], bool]] = []
        self._advances: list[Callable[[float], None]] = []
        self._keeper: Task | None = None  # who is told of errors
        self._error: Exception | None = None

    # What trio calls.

    def start_clock(self) -> None:
        """Do nothing: it starts at 0."""

    def current_time(self) -> float:
        """Return virtual seconds."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Move time on, not beyond trio's next deadline; return that there is no need to sleep."""
        if deadline <= self.now:
            return 0.0
        if self._keeper is None:
            return math.inf
        try:
            if not self._settle():
                self._jump(deadline)
        except Exception as error:  # which would be lost here
            self._error = error
            reschedule(self._keeper)
        return 0.0

    # What simulations call.

    def at_instant_end(self, settle: Callable[[], bool]) -> None:
        """Call `settle` whenever all tasks are blocked; true if it woke one of them."""
        self._instant_ends.append(settle)

    def on_advance(self, watch: Callable[[float], None]) -> None:
        """Call `watch(seconds)` before time moves on by so much; it must change nothing."""
        self._advances.append(watch)

    async def sleep(self, seconds: float) -> None:
        """Wait; for 0 seconds only look whether the caller is cancelled."""
        if seconds <= 0:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        number = next(self._numbers)
        heappush(self._due, (self.now + seconds, number, current_task()))

        def abort(_: object) -> Abort:
            self._cancelled.add(number)
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    def stop_at(self, seconds: float) -> None:
        """Let there be an instant at this time, or now if it has passed."""
        heappush(self._due, (max(seconds, self.now), next(self._numbers), None))

    async def keep(self) -> None:
        """Let time move on, for ever.

        Raises:
          RuntimeError: if every task waits and nothing will ever happen.
          Exception: of a function that was to be called.
        """
        self._keeper = current_task()
        await wait_task_rescheduled(self._forget_keeper)
        self._keeper = None
        assert self._error is not None
        raise self._error

    def _forget_keeper(self, _: object) -> Abort:
        self._keeper = None
        return Abort.SUCCEEDED

    def _settle(self) -> bool:
        woken = False
        for settle in self._instant_ends:
            woken = settle() or woken
        return woken

    def _jump(self, deadline: float) -> None:
        due, cancelled = self._due, self._cancelled
        while cancelled and due[0][1] in cancelled:
            cancelled.remove(heappop(due)[1])
        target = min(due[0][0], deadline) if due else deadline
        if target == math.inf:
            raise RuntimeError("every task waits and nothing is due: the simulation is deadlocked")
        for watch in self._advances:
            watch(target - self.now)
        self.now = target
        while due and due[0][0] <= target:
            _, number, task = heappop(due)
            if number in cancelled:
                cancelled.remove(number)
            elif task is not None:
                reschedule(task)


def run_virtually(main: Callable[[Timers], Awaitable[T]], *, seed: int) -> T:
    """Run `main(timers)` with trio under a virtual clock; return what it returns.

    Equal seeds give equal runs, whatever ran before: also the order in which trio runs the
    tasks that are ready at one instant is drawn from the seed.
    """
    timers = Timers()

    async def run_main() -> T:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.keep)
            result = await main(timers)
            nursery.cancel_scope.cancel()
        return result

    with seeded_scheduling(seed):
        return trio.run(run_main, clock=timers)


@contextmanager
def seeded_scheduling(seed: int, *, module: str = "trio._core._run") -> Iterator[None]:
    """Let trio order ready tasks by a seeded generator instead of by chance.

    Trio has no public switch for it; these two names are what its own hypothesis plugin sets.

    Args:
      module: where they are.

    Raises:
      RuntimeError: if this version of trio has them no more.
    """
    try:
        trio_run = importlib.import_module(module)
        generator, before = trio_run._r, trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"trio {trio.__version__} can't order tasks by a seed ({error}), so simulations "
            "would not be reproducible; install trio 0.35"
        ) from error
    state = generator.getstate()
    generator.seed(seed)
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[attr-defined]
        generator.setstate(state)


def collect_rarely() -> None:
    """Let garbage collection be rare: thousands of live tasks make each one slow."""
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 50, 1000)
