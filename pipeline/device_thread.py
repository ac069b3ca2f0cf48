"""One thread that owns the JAX calls of its devices, or a file, and the way to it from trio.

Commands run in the order in which they were given; between them runs `background` (the
sampler's decode loop), which never waits for trio. The thread never ends in silence: an
exception in the background work, a command that hangs at the end, an end that nobody asked
for, each surfaces in `serve`. Whoever waits for the thread is told that it has ended, so no
task waits for a dead thread.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import NoReturn, TypeVar

import outcome
import trio

from .errors import PipelineStalled

T = TypeVar("T")


class DeviceThread:
    """Runs commands and background work on one thread.

    Start it as a stage: `await nursery.start(device.serve)`. It ends with its nursery: the
    command that is running finishes, those that wait are abandoned. Commands given before the
    start wait for it. While there is nothing to do the thread sleeps.
    """

    def __init__(
        self,
        name: str,
        background: Callable[[], bool] | None = None,
        *,
        close_deadline_seconds: float = 10.0,
    ):
        """Args:
        name: shown in thread dumps.
        background: does one bounded piece of work; false if there was nothing to do, and
          then the thread sleeps until the next command.
        close_deadline_seconds: how long `serve` waits at its end for what is running.
        """
        self._background = background or _nothing_to_do
        self._close_deadline_seconds = close_deadline_seconds
        self._commands: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        self._running = ""  # the name of what the thread is in, for people
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._finished = trio.Event()
        self._waiting: set[trio.Event] = set()  # of the calls of `run`, on trio's side
        self._result: outcome.Maybe[None] = outcome.Value(None)
        self._trio: trio.lowlevel.TrioToken | None = None

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the thread until cancelled; raise what its background work raises.

        Its error comes even when this call is cancelled too: it may be the reason.

        Raises:
          PipelineStalled: where the thread doesn't end within the deadline, or ends unasked. It
            is a daemon and is abandoned: nobody waits for it any more.
        """
        self._trio = trio.lowlevel.current_trio_token()
        self._thread.start()
        task_status.started()
        try:
            await self._finished.wait()
        except BaseException as reason:
            await self._stop_within_deadline()
            self._raise_after(reason)
        self._thread.join()  # it has nothing more to do
        self._result.unwrap()
        raise PipelineStalled(f"the {self._thread.name} thread ended, and nobody had stopped it")

    @property
    def ended(self) -> bool:
        """Whether the thread has ended or was abandoned; no more commands run on it."""
        return self._finished.is_set()

    @property
    def abandoned(self) -> bool:
        """Whether the thread was given up while it was still in something."""
        return self.ended and self._thread.is_alive()

    def post(self, command: Callable[[], None]) -> None:
        """Run `command` on the thread, in order, without waiting; an error ends the thread."""
        self._commands.put((_name_of(command), command))

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

        self._commands.put((_name_of(function), command))
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

    async def _stop_within_deadline(self) -> None:
        """Stop the thread, and wait until it has ended or is given up."""
        self._stopping = True
        self.post(_nothing)
        # The deadline is of real time, whatever clock trio has: a virtual one would jump past it
        # while the thread ends. With a limiter of its own the wait needs no free worker thread.
        join = partial(self._thread.join, self._close_deadline_seconds)
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(join, limiter=trio.CapacityLimiter(1))
        self._finish()

    def _raise_after(self, reason: BaseException) -> NoReturn:
        """Raise what ended `serve`, and what came of the thread; neither may hide the other."""
        if self._thread.is_alive():
            error: BaseException | None = PipelineStalled(
                f"the {self._thread.name} thread is still in {self._running!r} "
                f"{self._close_deadline_seconds:g} s after its end was asked for; it was abandoned"
            )
        else:
            error = self._result.error if isinstance(self._result, outcome.Error) else None
        if error is None:
            raise reason
        if isinstance(reason, trio.Cancelled):  # whoever cancelled reports his reason himself
            raise error
        raise BaseExceptionGroup("serve was interrupted", [reason, error]) from None

    def _finish(self) -> None:
        self._finished.set()
        for done in self._waiting:
            done.set()

    def _loop(self) -> None:
        self._result = outcome.capture(self._run_until_stopped)
        assert self._trio is not None
        with suppress(trio.RunFinishedError):  # it was abandoned, and the run is over
            self._trio.run_sync_soon(self._finish)

    def _run_until_stopped(self) -> None:
        busy = True
        while not self._stopping:
            self._drain(block=not busy)
            if not self._stopping:
                self._running = _name_of(self._background)
                busy = self._background()

    def _drain(self, *, block: bool) -> None:
        try:
            while not self._stopping:
                self._execute(*self._commands.get(block=block))
                block = False
        except queue.Empty:
            return

    def _execute(self, name: str, command: Callable[[], None]) -> None:
        self._running = name
        command()


def _name_of(function: Callable[[], object]) -> str:
    """What people call a function: its qualified name, under whatever it is wrapped in."""
    if isinstance(function, partial):
        return _name_of(function.func)
    if isinstance(function, FunctionType | MethodType | BuiltinFunctionType):
        return function.__qualname__
    return type(function).__qualname__


def _nothing() -> None: ...


def _nothing_to_do() -> bool:
    return False
