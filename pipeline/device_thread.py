"""One thread that owns the JAX calls of its devices, and the way to it from trio.

Commands run in the order in which they were given; between them runs `background` (the
sampler's decode loop), which never waits for trio. An exception in the background work ends
the thread and surfaces in `serve`; whoever waits for the thread is told that it has ended, so
no task waits for a dead thread.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import outcome
import trio

T = TypeVar("T")


class DeviceThread:
    """Runs commands and background work on one thread.

    Start it as a stage: `await nursery.start(device.serve)`. It ends with its nursery: the
    command that is running finishes, those that wait are abandoned. Commands given before the
    start wait for it. While there is nothing to do the thread sleeps.
    """

    def __init__(self, name: str, background: Callable[[], bool] | None = None):
        """Args:
        name: shown in thread dumps.
        background: does one bounded piece of work; false if there was nothing to do, and
          then the thread sleeps until the next command.
        """
        self._background = background or _nothing_to_do
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._finished = trio.Event()
        self._waiting: set[trio.Event] = set()  # of the calls of `run`, on trio's side
        self._result: outcome.Maybe[None] = outcome.Value(None)
        self._trio: trio.lowlevel.TrioToken | None = None

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the thread until cancelled; raise what its background work raises.

        Its error comes even when this call is cancelled too: it may be the reason.
        """
        self._trio = trio.lowlevel.current_trio_token()
        self._thread.start()
        task_status.started()
        try:
            await self._finished.wait()
        finally:
            self._stopping = True
            self.post(_nothing)
            with trio.CancelScope(shield=True):
                await self._finished.wait()
            self._thread.join()
            self._result.unwrap()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended; nothing runs on it any more."""
        return self._finished.is_set()

    def post(self, command: Callable[[], None]) -> None:
        """Run `command` on the thread, in order, without waiting; an error ends the thread."""
        self._commands.put(command)

    async def run(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread and return its result, or raise its exception.

        If the caller is cancelled, the function still runs; its result is thrown away.

        Raises:
          trio.ClosedResourceError: where the thread ends, or has ended, without running it.
        """
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        results: list[outcome.Maybe[T]] = []

        def command() -> None:
            results.append(outcome.capture(function))
            token.run_sync_soon(done.set)

        self.post(command)
        await self._wait(done)
        if not results:
            await trio.lowlevel.checkpoint_if_cancelled()  # the thread ends when the run does
            error = self._result.error if isinstance(self._result, outcome.Error) else None
            raise trio.ClosedResourceError(f"the {self._thread.name} thread has ended") from error
        return results[0].unwrap()

    async def _wait(self, done: trio.Event) -> None:
        """Wait for the event or for the end of the thread."""
        if self.ended:
            return
        self._waiting.add(done)
        try:
            await done.wait()
        finally:
            self._waiting.remove(done)

    def _finish(self) -> None:
        self._finished.set()
        for done in self._waiting:
            done.set()

    def _loop(self) -> None:
        self._result = outcome.capture(self._run_until_stopped)
        assert self._trio is not None
        self._trio.run_sync_soon(self._finish)

    def _run_until_stopped(self) -> None:
        busy = True
        while not self._stopping:
            self._drain(block=not busy)
            if not self._stopping:
                busy = self._background()

    def _drain(self, *, block: bool) -> None:
        try:
            while not self._stopping:
                self._commands.get(block=block)()
                block = False
        except queue.Empty:
            return


def _nothing() -> None: ...


def _nothing_to_do() -> bool:
    return False
