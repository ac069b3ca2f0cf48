"""One run of code in a worker of Monty: in a thread, watched and killed from another.

Invariant: a worker is killed while it works for this call, and never after. How the call ended
is told by the interpreter's own errors, which code can imitate in words only: they have no
traceback, or name a limit that nobody inside has ever seen.
"""

import os
import re
import secrets
import signal
import threading
import time
from contextlib import suppress

import pydantic_monty

from .limits import Limits
from .results import Result, Status, Usage
from .supervisor.runner import read_small

_NO_WAITING: pydantic_monty.OSPolicy = {"sleep": "zero"}  # its sleeps can't be cut short
_NO_VALUE = "\n\nNone"  # else the value of the last line is copied into this process
_PIECE_BYTES, _PIECES_PER_SECOND = 64, 250  # how outputs are counted, and how often they come
_SECRET_BITS = 20  # of the bytes by which a limit of memory is less than was asked for
_NOTED_SECONDS = 0.001  # of a shorter call the memory isn't looked up, which would take as long
_CHECKOUTS = 10  # idle workers that somebody has killed are found one by one
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FROM_OUTSIDE = re.compile(
    r"while sending a request|\(signal: \d+ \((?:SIGKILL|SIGTERM|SIGINT|SIGHUP)\)\)$"
)

_End = tuple[Status, str, str]  # a status, its cause, and a traceback to show


class MontyCall:
    """A call.

    Attributes:
      result: how it ended, as far as it is known; whole when `run` has returned.
    """

    def __init__(
        self, pool: pydantic_monty.Monty, code: str, limits: Limits, exec_id: str
    ) -> None:
        self._pool = pool
        self._code = code + _NO_VALUE
        self._limits = limits
        self._memory_bytes = limits.memory_bytes - secrets.randbits(_SECRET_BITS)
        pieces = (
            int(_PIECES_PER_SECOND * limits.wall_seconds) + limits.output_bytes // _PIECE_BYTES
        )
        self._output_bytes = 2 * limits.output_bytes + _PIECE_BYTES * (pieces + 2)
        self._output = pydantic_monty.CollectStreams(max_bytes=self._output_bytes)
        self._turn = threading.Lock()
        self._worker: int | None = None  # while it works for this call
        self._is_over = False
        self._stopped: tuple[Status, str] | None = None
        self._said_before: int | None = None
        self._cpu_before = 0.0
        self._began = 0.0
        self._peak_bytes = 0
        self._cpu_seconds = 0.0
        self.result = Result("killed", exec_id=exec_id, cause="cancelled")

    def run(self) -> None:
        """Run the code until it ends or its worker is killed; in a thread."""
        self._began = time.monotonic()
        status, cause, trace = self._run()
        with self._turn:
            self._is_over = True
        if self._stopped is not None:
            status, cause = self._stopped
        self.result = self._result(status, cause, trace)

    def stop(self, status: Status, cause: str) -> None:
        """End the call, if it hasn't ended, by killing its worker; it then ended so."""
        with self._turn:
            if self._is_over or self._stopped is not None:
                return
            self._stopped = status, cause
            if self._worker is not None:
                self._note_usage(self._worker)
                with suppress(ProcessLookupError):
                    os.kill(self._worker, signal.SIGKILL)

    def look(self) -> None:
        """Note what the worker uses; end it if it says more than it may, which is lost anyway."""
        says_too_much = False
        with self._turn, suppress(OSError):
            if self._worker is None:
                return
            self._note_usage(self._worker)
            said_bytes = _said_bytes(self._worker)
            if self._said_before is None:
                self._said_before = said_bytes
            says_too_much = said_bytes - self._said_before > self._output_bytes
        if says_too_much:
            self.stop("output_limit", "output limit")

    def _run(self) -> _End:
        # The interpreter's clock counts what it runs for, which is less than what passes.
        bounds: pydantic_monty.ResourceLimits = {
            "max_feed_duration_secs": min(self._limits.cpu_seconds, self._limits.wall_seconds),
            "max_memory": self._memory_bytes,
        }
        problem: Exception | None = None
        for _ in range(_CHECKOUTS):
            try:
                with self._pool.checkout(limits=bounds, os_policy=_NO_WAITING) as session:
                    return self._feed(session)
            except (OSError, pydantic_monty.MontyError) as error:
                problem = error
                if self._is_over or not isinstance(error, pydantic_monty.MontyCrashedError):
                    break
        return "infrastructure", f"there is no worker: {problem}", ""

    def _feed(self, session: pydantic_monty.MontySession) -> _End:
        worker = session.worker_pid  # not to be had while it works
        if worker is None or not self._hold(worker):
            return "infrastructure", "there is no worker", ""
        try:
            session.feed_run(self._code, print_callback=self._output)
        except pydantic_monty.MontyCrashedError as error:
            return *_judge_crash(error), ""
        except pydantic_monty.MontySyntaxError as error:
            return "error", "exit 1", error.display()
        except pydantic_monty.MontyRuntimeError as error:
            return *self._judge(error), error.display()
        finally:
            self._let_go(worker)
        return "ok", "exit 0", ""

    def _hold(self, worker: int) -> bool:
        """Let the worker be killed for this call; say whether the call is still wanted."""
        with self._turn:
            if self._stopped is None:
                self._worker = worker
                with suppress(OSError):
                    self._cpu_before = _cpu_seconds(worker)
            return self._stopped is None

    def _let_go(self, worker: int) -> None:
        with self._turn:
            self._worker, self._is_over = None, True
            self._note_usage(worker)

    def _note_usage(self, worker: int) -> None:
        with suppress(OSError):  # it is gone; what was noted before stands
            self._cpu_seconds = _cpu_seconds(worker) - self._cpu_before
            if self._cpu_seconds < _NOTED_SECONDS:
                return
            pages = int(read_small(f"/proc/{worker}/statm").split()[1])
            self._peak_bytes = max(self._peak_bytes, pages * _PAGE_BYTES)

    def _judge(self, error: pydantic_monty.MontyRuntimeError) -> tuple[Status, str]:
        inner = error.exception()
        if not isinstance(inner, TimeoutError | MemoryError):
            return "error", "exit 1"
        is_limit = not error.traceback()  # what code raises has one
        if isinstance(inner, TimeoutError):
            return ("timeout", self._time_limit()) if is_limit else ("error", "exit 1")
        if is_limit and str(error).endswith(f"> {self._output_bytes} bytes"):
            return "output_limit", "output limit"
        if is_limit or str(error).endswith(f"> {self._memory_bytes} bytes"):
            return "oom", "memory limit"
        return "error", "exit 1"

    def _time_limit(self) -> str:
        is_cpu = self._limits.cpu_seconds <= self._limits.wall_seconds
        return "cpu limit" if is_cpu else "wall limit"

    def _result(self, status: Status, cause: str, trace: str) -> Result:
        texts = {"stdout": "", "stderr": ""}
        for stream, text in self._output.output:
            texts[stream] += text
        stdout = texts["stdout"].encode(errors="replace")
        stderr = (texts["stderr"] + trace).encode(errors="replace")
        room = self._limits.output_bytes
        truncated = len(stdout) > room or len(stderr) > room
        if truncated and status in ("ok", "error"):
            status, cause = "output_limit", "output limit"
        return Result(
            status=status,
            exit_code={"ok": 0, "error": 1}.get(status),
            stdout=stdout[:room],
            stderr=stderr[:room],
            truncated=truncated or status == "output_limit",
            usage=self._usage(),
            exec_id=self.result.exec_id,
            cause=cause,
        )

    def _usage(self) -> Usage:
        return Usage(
            wall_seconds=time.monotonic() - self._began,
            cpu_seconds=self._cpu_seconds,
            peak_memory_bytes=self._peak_bytes,
            processes_killed=int(self._stopped is not None),
        )


def _judge_crash(error: pydantic_monty.MontyCrashedError) -> tuple[Status, str]:
    """Say who ended a worker that nobody here has killed."""
    if error.timed_out:  # one operation took longer than the call may
        return "timeout", "cpu limit"
    if _FROM_OUTSIDE.search(str(error)):
        return "infrastructure", f"the worker was killed from outside: {error}"
    return "killed", f"the interpreter crashed: {error}"


def _cpu_seconds(pid: int) -> float:
    """Return what a process has used of its processor.

    Raises:
      OSError: if it is gone.
    """
    return time.clock_gettime((~pid << 3) | 2)  # the clock that clock_getcpuclockid names


def _said_bytes(pid: int) -> int:
    """Return how much a process has written, to this one: it has nowhere else to write.

    Raises:
      OSError: if it is gone, or the kernel doesn't tell.
    """
    return int(read_small(f"/proc/{pid}/io").split()[3])
