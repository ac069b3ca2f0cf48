"""Makes code that blocks trio's loop visible, and ends it where that is safe.

While one call blocks, no task runs and no deadline can end it. A thread of its own watches the
loop's beats. When they stop it reports where the loop's thread is; when one call of an
environment has blocked for long, it is interrupted: an exception is raised inside it.

Invariant: an exception is raised only in foreign code that an episode called, while that very
call keeps the loop from beating. Never in trio, in the pipeline, or in a call that has taken
the blocking one's place: a signal handler decides, so that nothing can happen between the
decision and the exception. For the foreign code it is like a Ctrl-C.
"""

import linecache
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import outcome
import trio

SIGNAL = signal.SIGUSR2  # SIGUSR1 asks who waits for what
MOST_FRAMES = 20

# What an exception at an arbitrary point could leave half done, locked, or swallow.
_PROTECTED_FOLDERS = tuple(
    f"{Path(module).parent}/"
    for module in (__file__, trio.__file__, outcome.__file__, logging.__file__)
)
_DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle")  # a person is looking at it
_BEATS_A_BLOCK = 4
_LOOKS_A_BEAT = 4
_LATE_LOOKS = 4  # a watcher that is later was kept from watching


class LoopBlocked(Exception):
    """Raised inside a call that blocks the loop; an `Exception`, so only its episode fails."""


@dataclass
class _Block:
    """The time since a beat, which may become long.

    Attributes:
      beat: when the loop beat last.
      began: the same, put off by the time in which nobody watched.
      next_report_seconds: after how long to report next.
      reports: made so far.
      seen: whether anybody has looked what blocks.
      call: the foreign call that blocks; None for other code.
      call_began: when it may have begun, put off by an interrupt.
    """

    beat: float
    began: float
    next_report_seconds: float
    reports: int = 0
    seen: bool = False
    call: FrameType | None = None
    call_began: float = 0.0


class LoopGuard:
    """Watches the trio loop that runs `serve`. One `serve` for each guard.

    A C function that keeps the interpreter's lock stops the watching thread, too: then the
    block is reported afterwards, without a place.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        *,
        blocked_seconds: float = 5.0,
        interrupt_seconds: float | None = 60.0,
        guarded_files: Collection[str] = (),
    ):
        """Args:
        report: told what people should know, on the guard's thread and while the loop stands
          still, so it must not wait for the loop. What it raises ends `serve`.
        blocked_seconds: a loop that stands still for so long is reported.
        interrupt_seconds: one call that blocks for so long is interrupted; None: never.
        guarded_files: `__file__` of the modules that call foreign code. Only calls from there
          are interrupted.

        Raises:
          ValueError: for numbers out of range.
        """
        if not (blocked_seconds > 0 and (interrupt_seconds is None or interrupt_seconds > 0)):
            raise ValueError(
                f"blocked_seconds and interrupt_seconds must be > 0, got {blocked_seconds} and "
                f"{interrupt_seconds}; interrupt_seconds=None never interrupts"
            )
        self._report = report
        self._blocked_seconds = blocked_seconds
        self._interrupt_seconds = interrupt_seconds
        self._guarded_files = guarded_files
        self._beat_seconds = min(1.0, blocked_seconds / _BEATS_A_BLOCK)
        self._look_seconds = self._beat_seconds / _LOOKS_A_BEAT
        self._beat = 0.0
        self._gap_seconds = 0.0  # the last one worth a report
        self._loop_thread = 0
        self._may_interrupt = False
        self._wanted: _Block | None = None  # whose call the next signal is to interrupt
        self._stopping = threading.Event()
        self._result: outcome.Maybe[None] = outcome.Value(None)

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch this loop until cancelled.

        Interrupts need the main thread, and a signal that nobody else handles; its former
        handler is put back at the end. Without them, blocks are only reported.
        """
        self._loop_thread = threading.get_ident()
        self._beat = time.monotonic()
        watcher = threading.Thread(target=self._watch, name="loop guard", daemon=True)
        with self._signal_handler(watcher):
            watcher.start()
            task_status.started()
            try:
                while watcher.is_alive():
                    await trio.sleep(self._beat_seconds)
                    self._do_beat()
            finally:
                self._stopping.set()
                watcher.join(self._blocked_seconds)  # not for ever: a report may hang
        self._result.unwrap()

    def _do_beat(self) -> None:
        now = time.monotonic()
        if now - self._beat > self._blocked_seconds:
            self._gap_seconds = now - self._beat
        self._beat = now

    # On the watching thread.

    def _watch(self) -> None:
        self._result = outcome.capture(self._look_until_stopped)

    def _look_until_stopped(self) -> None:
        block = _Block(self._beat, self._beat, self._blocked_seconds)
        looked = time.monotonic()
        while not self._stopping.wait(self._look_seconds):
            now = time.monotonic()
            if self._beat != block.beat:
                self._report_end(block)
                block = _Block(self._beat, self._beat, self._blocked_seconds)
            elif now - looked > _LATE_LOOKS * self._look_seconds:
                block.began += now - looked  # the whole process stood still, not the loop alone
                block.call_began += now - looked
            looked = now
            if now - block.began >= self._blocked_seconds:
                self._look(block, now)

    def _look(self, block: _Block, now: float) -> None:
        """Find out what blocks; report it and interrupt it when it is time."""
        frame = sys._current_frames().get(self._loop_thread)
        call = foreign_call(frame, self._guarded_files)
        if not block.seen or call is not block.call:
            block.call_began = now if block.seen else block.began
            block.seen, block.call = True, call
        elif self._is_due(block, now):
            self._interrupt(block, now)
        if now - block.began >= block.next_report_seconds:
            block.next_report_seconds *= 2
            block.reports += 1
            self._report(
                f"the event loop is blocked for {now - block.began:.1f} s, so nothing else runs; "
                f"it is in\n{describe_stack(frame, self._guarded_files)}\n{self._advice(block)}"
            )

    def _is_due(self, block: _Block, now: float) -> bool:
        seconds = self._interrupt_seconds
        if not self._may_interrupt or block.call is None or seconds is None:
            return False
        return now - block.call_began >= seconds

    def _interrupt(self, block: _Block, now: float) -> None:
        seconds = now - block.call_began
        block.call_began = now  # should it be swallowed, again after as long
        self._wanted = block
        signal.pthread_kill(self._loop_thread, SIGNAL)
        self._report(f"a call that blocked the event loop for {seconds:.1f} s is interrupted")

    def _advice(self, block: _Block) -> str:
        if block.call is None:
            return "It is no call of an environment, or not at a place that can be interrupted."
        text = "An environment that blocks belongs in a thread; see in_threads, or in_thread=True."
        if self._may_interrupt:
            text += f" It is interrupted after {self._interrupt_seconds:g} s."
        return text

    def _report_end(self, block: _Block) -> None:
        gap_seconds, self._gap_seconds = self._gap_seconds, 0.0
        if block.reports:
            seconds = gap_seconds or self._beat - block.beat
            self._report(f"the event loop runs again; it was blocked for {seconds:.1f} s")
        elif gap_seconds:
            self._report(
                f"the event loop was blocked for {gap_seconds:.1f} s, nobody saw where: the "
                "process stood still, or a C function kept the interpreter's lock"
            )

    # On the loop's thread.

    @contextmanager
    def _signal_handler(self, watcher: threading.Thread) -> Iterator[None]:
        """Handle the signal inside, where interrupts are wanted and possible."""
        self._may_interrupt = (
            self._interrupt_seconds is not None
            and len(self._guarded_files) > 0
            and threading.current_thread() is threading.main_thread()
            and signal.getsignal(SIGNAL) in (signal.SIG_DFL, signal.SIG_IGN)
        )
        if not self._may_interrupt:
            yield
            return
        former = signal.signal(SIGNAL, self._on_signal)
        try:
            yield
        finally:
            # A watcher that hangs in a report could still send a signal, which would kill.
            if not watcher.is_alive():
                signal.signal(SIGNAL, former)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._still_blocks(frame):
            raise LoopBlocked(
                f"it blocked the event loop for more than {self._interrupt_seconds:g} s; call "
                "what blocks in a thread: in_threads(...), or a tool with in_thread=True"
            )

    def _still_blocks(self, frame: FrameType | None) -> bool:
        """Whether the call that was to be interrupted runs at this very moment."""
        block, self._wanted = self._wanted, None
        return (
            block is not None
            and block.call is not None
            and block.beat == self._beat
            and block.call is foreign_call(frame, self._guarded_files)
            and not self._stopping.is_set()
        )


def foreign_call(frame: FrameType | None, guarded_files: Collection[str]) -> FrameType | None:
    """Find the call of foreign code from some files that a thread is in.

    Args:
      frame: the innermost one.
      guarded_files: the files that call foreign code.

    Returns:
      The outermost frame that one of the files called; None if there is none, or if anything on
      the way from there must not be interrupted.
    """
    called = found = None
    while frame is not None:
        if frame.f_code.co_filename in guarded_files:
            if called is not None and called.f_code.co_filename not in guarded_files:
                found = called
        elif _is_protected(frame):
            break
        called, frame = frame, frame.f_back
    return found


def _is_protected(frame: FrameType) -> bool:
    if frame.f_code.co_filename.startswith(_PROTECTED_FOLDERS):
        return True
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in _DEBUGGERS or frame.f_code.co_name == "__del__"


def describe_stack(frame: FrameType | None, last_files: Collection[str]) -> str:
    """List a thread's frames, innermost first, up to the first one of some files."""
    lines: list[str] = []
    while frame is not None and len(lines) < MOST_FRAMES:
        code = frame.f_code
        number = frame.f_lineno or code.co_firstlineno  # some instructions have no line
        source = linecache.getline(code.co_filename, number).strip()
        lines.append(f"  {code.co_qualname} ({code.co_filename}:{number})  {source}".rstrip())
        frame = frame.f_back if code.co_filename not in last_files else None
    return "\n".join(lines)
