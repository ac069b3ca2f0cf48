"""The worker process: makes the calls of environments or functions, one after another.

Invariant: every request gets one answer, whatever the environment raises. When the run is gone,
the kernel kills this process and its children, whatever they are busy with.
"""

import dataclasses
import faulthandler
import fcntl
import io
import os
import pickle
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from .base import EPISODE, EnvironmentBroken, RewardFailed, StepResult, Task, innermost
from .messages import Message
from .process_wire import HEADER, Answer, Call, Request, frame
from .sandbox.audit import AuditLog, audit_to

_TEXT_CHARACTERS = 1000
_DETAILS_CHARACTERS = 8000


def main() -> None:
    """Serve until the run closes the socket. Arguments: a name, a socket, a lifeline."""
    connection, lifeline = int(sys.argv[2]), int(sys.argv[3])
    _die_with(lifeline)
    _be_killed_first()
    for descriptor in (connection, lifeline):
        os.set_inheritable(descriptor, False)
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    serve(connection)


def serve(connection: int) -> None:
    """Answer requests until there are no more."""
    # Only the process's end closes the socket: by then its last words are written.
    requests = os.fdopen(connection, "rb", closefd=False)
    answers = os.fdopen(connection, "wb", closefd=False)
    host = _Host()
    own = os.getpid()
    while header := requests.read(HEADER.size):
        (size,) = HEADER.unpack(header)
        answer = host.answer(requests.read(size))
        if os.getpid() != own:  # a fork that came back from a call: one of the two answers
            os._exit(1)
        answers.write(answer)
        answers.flush()


def _die_with(lifeline: int) -> None:
    """Be killed, children included, when the other end of the pipe is closed.

    Not by PR_SET_PDEATHSIG: that follows the thread which started this process, not the run.
    """
    if sys.platform == "linux":  # no thread of this process has to run for it
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
        if select.select([lifeline], [], [], 0)[0]:  # it was closed before
            sys.exit("the run is gone")
    else:
        threading.Thread(target=_wait_for_the_end, args=(lifeline,), daemon=True).start()


def _be_killed_first() -> None:
    """Where memory runs out, let Linux end this process and its children, and not the run."""
    if sys.platform == "linux":
        with suppress(OSError):  # a hardened container
            Path("/proc/self/oom_score_adj").write_text("1000")


def _wait_for_the_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


class _Host:
    """The environment of this process, if one is open."""

    def __init__(self) -> None:
        self._make: Any = None
        self._manager: Any = None
        self._env: Any = None
        self._max_result_bytes = 0
        self._audit = ExitStack()  # open as long as this process
        self._threads = _threads()

    def answer(self, body: bytes) -> bytes:
        """Make the call of a request; return the frame of its answer."""
        request: Request = pickle.loads(body)
        EPISODE.set(request.episode)
        if request.call == "start":  # a failure ends this process, with its traceback as output
            self._start(*request.arguments)
            return frame(Answer("ok"))
        try:
            return self._make_call(request)
        except BaseException as error:  # also SystemExit: the fault of one episode
            cause = innermost(error)
            if isinstance(cause, EnvironmentBroken):
                return frame(Answer("broken", str(cause)))
            reusable = not self._left_something()
            if isinstance(cause, RewardFailed):  # the environment itself is well
                text = str(cause)[:_TEXT_CHARACTERS]
                return frame(Answer("unscored", text, reusable=reusable))
            return frame(Answer("error", _describe(cause), _details(), reusable=reusable))

    def _start(self, make: bytes, max_result_bytes: int, audit: tuple[str, str] | None) -> None:
        if audit is not None:  # sandboxes that are opened here are recorded with the run's
            path, run = audit
            self._audit.enter_context(audit_to(AuditLog(Path(path), run)))
        self._make = pickle.loads(make)
        self._max_result_bytes = max_result_bytes

    def _make_call(self, request: Request) -> bytes:
        calls: dict[Call, Callable[..., Any]] = {
            "open": self._open,
            "reset": self._reset,
            "step": self._step,
            "close": self._close,
            "run": self._run,
        }
        result = calls[request.call](*request.arguments)
        over = request.call in ("close", "run")
        reusable = not (over and self._left_something())
        data = frame(Answer("ok", result, reusable=reusable))
        _check_size(request.call, len(data), self._max_result_bytes)
        return data

    def _open(self) -> None:
        manager = self._make()
        self._env = manager.__enter__()
        self._manager = manager

    def _reset(self, task: Task, seed: int) -> list[Message]:
        return list(_finite(self._env.reset(task, seed)))

    def _step(self, message: Message) -> Any:
        result = self._env.step(message)
        return _plain(result) if isinstance(result, StepResult) else result

    def _close(self) -> None:
        manager, self._manager, self._env = self._manager, None, None
        manager.__exit__(None, None, None)

    def _run(self, *arguments: Any) -> Any:
        return self._make(*arguments)  # a function, which makes its result

    def _left_something(self) -> bool:
        alarm, _ = signal.getitimer(signal.ITIMER_REAL)  # it would end the next episode
        return _threads() > self._threads or alarm > 0 or _has_children()


def _plain(result: StepResult) -> StepResult:
    """Return the result with Python's own numbers: simulators give arrays' elements."""
    return dataclasses.replace(
        result,
        messages=tuple(_finite(result.messages)),
        reward=_plain_number(result.reward),
        terminated=bool(result.terminated),
        truncated=bool(result.truncated),
        info={str(name): _plain_number(value) for name, value in result.info.items()},
    )


def _finite(messages: Any) -> Any:
    """Refuse an iterator, which may have no end."""
    if not isinstance(messages, list | tuple):
        raise TypeError(f"messages must be a tuple or a list, got {messages!r:.100}")
    return messages


def _plain_number(value: Any) -> Any:
    return value if isinstance(value, str | bytes) else float(value)  # text is refused later


def _threads() -> int:
    """Count threads, but for those that trio keeps idle for some seconds."""
    names = [thread.name for thread in threading.enumerate()]
    return sum(not name.startswith("Trio thread") for name in names)


def _has_children() -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _check_size(call: Call, size: int, most: int) -> None:
    if size > most:
        raise ValueError(
            f"the result of {call} has {size} bytes, at most {most} may be sent; return less, or "
            "raise max_result_bytes"
        )


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:_TEXT_CHARACTERS]


def _details() -> str:
    return traceback.format_exc()[-_DETAILS_CHARACTERS:]
