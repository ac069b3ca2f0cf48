"""What hostile or careless code uses up, and what it leaves running.

Each check says which ends count as held. Where the kernel can't enforce a limit on this
machine, the check is what a look every 0.1 s can do.
"""

from dataclasses import replace

import pytest

from tests.envs.sandbox.harness import SMALL, Check, Outcome, Outcomes, run_checks

_SHORT = {"wall_seconds": 0.4}
_MEMORY = {"memory_bytes": 64 << 20, "wall_seconds": 8.0}

TIME = {
    "spin": Check("while True: pass", ("timeout",), b"", _SHORT, ("wall limit",)),
    "sleep": Check("import time; time.sleep(60)", ("timeout",), b"", _SHORT, ("wall limit",)),
    "cpu_time": Check(
        "while True: pass",
        ("timeout",),
        b"",
        {"cpu_seconds": 1.0, "wall_seconds": 30.0},
        ("cpu limit",),
    ),
    "ignored_signals": Check(
        """
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
time.sleep(60)
""",
        ("timeout",),
        b"",
        _SHORT,
    ),
    "ignored_cpu_signal": Check(
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        ("timeout",),
        b"",
        {"cpu_seconds": 1.0, "wall_seconds": 30.0},
        ("cpu limit",),
    ),
    "stopped_itself": Check(
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", ("timeout",), b"", _SHORT
    ),
}
OUTPUT = {
    "stdout": Check("while True: print('x' * 100)", ("output_limit",), None),
    "stderr": Check(
        "import sys\nwhile True: sys.stderr.write('x' * 100)", ("output_limit",), None
    ),
    "stdout_from_below": Check(
        "import os\nwhile True: os.write(1, b'x' * 100_000)", ("output_limit",), None
    ),
    "exactly_full": Check("print('x' * 4095)", ("ok",), b"x" * 4095),
    "one_byte_more": Check("print('x' * 4096)", ("output_limit",), None),
}
PROCESSES = {
    "fork_bomb": Check(
        """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
        ("timeout", "killed", "oom"),
        None,
        {"wall_seconds": 1.0},
    ),
    "thread_bomb": Check(
        """
import threading, time
made = 0
try:
    for made in range(1000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass
print('held' if made < 40 else made)
""",
        ("ok", "killed", "oom"),
        b"held",
        {"wall_seconds": 5.0},
    ),
    "zombies": Check(
        """
import os
for _ in range(200):
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        break
print('held')
""",
        ("ok", "killed"),
        None,
    ),
    "descriptors": Check(
        """
import os
held = []
try:
    while True: held.append(os.open('/dev/null', os.O_RDONLY))
except OSError:
    print('held' if len(held) < 32 else len(held))
"""
    ),
    "recursion": Check(
        "import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        ("error", "oom"),
        None,
        {"wall_seconds": 20.0, "cpu_seconds": 20.0},
    ),
}
MEMORY = {
    "one_process": Check("x = bytearray(10**9)", ("oom",), b"", _MEMORY),
    "slowly": Check(
        "held = []\nwhile True: held.append(bytearray(10**6))", ("oom",), b"", _MEMORY
    ),
    "many_processes": Check(
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b'x') * (30 << 20)
        time.sleep(60)
        os._exit(0)
for _ in range(8):
    os.wait()
""",
        ("oom", "timeout"),  # the kernel may kill some, and the others stay below the limit
        b"",
        _MEMORY,
    ),
}
DISK = {
    "one_large_file": Check(
        """
try:
    with open('big', 'wb') as file:
        while True: file.write(b'x' * 65536)
except OSError as error:
    print('held' if error.errno == 27 else error)
"""
    ),
    "sparse_file": Check(
        """
import os
try:
    os.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 1 << 40)
    print('made')
except OSError:
    print('held')
"""
    ),
    "many_large_files": Check(
        """
try:
    for number in range(100):
        open(f'big-{number}', 'wb').write(b'x' * 900_000)
    print('wrote 90 MB')
except OSError as error:
    print('held' if error.errno in (28, 12) else error)
""",
        ("ok", "killed", "oom"),
    ),
    "many_files": Check(
        """
import os
try:
    for number in range(10**6):
        os.close(os.open(f'file-{number}', os.O_CREAT | os.O_WRONLY))
except OSError:
    print('held')
""",
        ("killed", "oom"),
        None,
        {"wall_seconds": 20.0, "cpu_seconds": 20.0},
    ),
}
LEFT_BEHIND = {
    "daemon": Check(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(0), os.close(1), os.close(2)
        time.sleep(60)
    os._exit(0)
os.wait()
print('held')
"""
    ),
    "grandchild_with_the_pipe": Check(
        """
import os, time
if os.fork() == 0:
    time.sleep(60)
print('held', flush=True)
os._exit(0)
"""
    ),
    "many_daemons": Check(
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
print('held')
"""
    ),
    "a_tree_that_ignores_signals": Check(
        """
import os, signal, time
for _ in range(3):
    os.fork()
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
time.sleep(60)
""",
        ("timeout",),
        b"",
        _SHORT,
    ),
}
VIOLENCE = {
    "kill_all": Check(
        "import os, signal; os.kill(-1, signal.SIGKILL)", ("killed", "error", "ok"), b""
    ),
    "kill_the_runner": Check(
        "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)",
        ("killed",),
        b"",
    ),
    "stop_the_runner": Check(
        "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(60)",
        ("timeout",),
        b"",
        _SHORT,
    ),
    "segfault": Check("import ctypes; ctypes.string_at(0)", ("error",), b"", {}, ("signal 11",)),
    "abort": Check("import os; os.abort()", ("error",), b"", {}, ("signal 6",)),
    "exit_code": Check("import os; os._exit(7)", ("error",), b"", {}, ("exit 7",)),
}
TABLES = {
    "time": TIME,
    "output": OUTPUT,
    "processes": PROCESSES,
    "memory": MEMORY,
    "disk": DISK,
    "left_behind": LEFT_BEHIND,
    "violence": VIOLENCE,
}
ALL = {f"{table}-{name}": check for table in TABLES for name, check in TABLES[table].items()}


def _without_walls(name: str) -> bool:
    """Whether a check can be run without harm to the machine that runs the tests."""
    is_safe_table = name.split("-")[0] in ("time", "left_behind")
    return is_safe_table or name in ("violence-segfault", "violence-exit_code", "memory-slowly")


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return run_checks("bwrap", ALL)


@pytest.fixture(scope="module")
def outcomes_without_walls() -> Outcomes:
    return run_checks("rlimit", {name: ALL[name] for name in ALL if _without_walls(name)})


@pytest.mark.parametrize("name", ALL)
def test_the_limits_hold(name: str, outcomes: Outcomes) -> None:
    assert_held(ALL[name], outcomes[name])


@pytest.mark.parametrize("name", [name for name in ALL if _without_walls(name)])
def test_the_limits_hold_without_walls(name: str, outcomes_without_walls: Outcomes) -> None:
    assert_held(ALL[name], outcomes_without_walls[name])


def assert_held(check: Check, outcome: Outcome) -> None:
    result = outcome.result
    assert result.status in check.statuses, result
    assert not check.causes or result.cause in check.causes, result
    assert (result.exit_code is None) == (result.status not in ("ok", "error"))
    if result.status == "ok" and check.prints is not None:
        assert result.stdout.strip() == check.prints, result
    if result.status == "timeout":
        limits = replace(SMALL, **dict(check.limits))
        assert result.usage.wall_seconds < limits.wall_seconds + 5, result
        assert result.usage.peak_memory_bytes <= limits.memory_bytes, result
    assert len(result.stdout) <= SMALL.output_bytes
    assert len(result.stderr) <= SMALL.output_bytes
    assert result.truncated is (result.status == "output_limit")
    assert outcome.after.stdout == b"alive\n", outcome.after


def test_what_is_left_behind_is_counted(outcomes: Outcomes) -> None:
    assert outcomes["left_behind-daemon"].result.usage.processes_killed == 1
    assert outcomes["left_behind-many_daemons"].result.usage.processes_killed == 8


def test_the_files_are_lost_only_with_the_sandbox(outcomes: Outcomes) -> None:
    lost = {name for name in ALL if outcomes[name].result.workspace_lost}
    assert {"violence-kill_the_runner", "violence-stop_the_runner"} <= lost
    assert not {name for name in lost if name.split("-")[0] in ("time", "output", "left_behind")}
