"""A program in a sandbox: from the fork of the runner to its exit.

Invariant: before any of the program's code runs it has its limits, and of the runner's
descriptors none.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
from types import ModuleType
from typing import Any, NoReturn

DUMPABLE = 4  # prctl
LIBC = ctypes.CDLL(None, use_errno=True)


class Program:
    """The forked child, on its way to being the program."""

    def __init__(self, job: dict[str, Any], code: bytes, settings: dict[str, Any]) -> None:
        self._job = job
        self._code = code
        self._settings = settings

    def start(self, fds: list[int], keep_out: tuple[socket.socket, int]) -> NoReturn:
        """Become the program; whatever goes wrong, never return into the runner."""
        status = 127
        try:
            self._let_go(fds, keep_out)
            self._limit()
            if self._job["argv"]:
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which interpreters ignore
                    signal.signal(number, signal.SIG_DFL)
                os.execvpe(self._job["argv"][0], self._job["argv"], os.environ)
            status = self._run()
        except OSError as error:
            os.write(2, f"{self._job['argv'][:1] or 'the program'}: {error.strerror}\n".encode())
        finally:
            os._exit(status)

    def _let_go(self, fds: list[int], keep_out: tuple[socket.socket, int]) -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _, stdin, stdout, stderr = fds
        for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        keep_out[0].close()
        os.closerange(3, 4096)
        LIBC.prctl(DUMPABLE, 1, 0, 0, 0)
        os.chdir(self._settings["work"])
        os.environ.clear()
        os.environ.update(self._settings["environment"])

    def _limit(self) -> None:
        with contextlib.suppress(OSError):  # before the runner, which reports what happened
            os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC), b"1000")
        os.closerange(3, 4)
        for name, soft, hard in self._job["rlimits"]:
            resource.setrlimit(name, (soft, hard))

    def _run(self) -> int:
        """Run the code as a script would be; return its exit code."""
        main = ModuleType("__main__")
        main.__dict__["__file__"] = "main.py"
        sys.modules["__main__"] = main
        sys.argv[:] = ["main.py"]
        sys.path[:0] = [self._settings["work"], *self._settings["path"]]
        try:
            exec(compile(self._code, "main.py", "exec"), main.__dict__)
        except SystemExit as end:
            return _finish(_code_of(end))
        except BaseException as error:
            trace = error.__traceback__
            shown = error.with_traceback(trace.tb_next if trace else None)
            sys.excepthook(type(shown), shown, shown.__traceback__)
            return _finish(1)
        return _finish(0)


def _finish(status: int) -> int:
    """Do what an interpreter does at its end."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status


def _code_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1
