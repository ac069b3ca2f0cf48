"""What hostile or careless code uses up, and what it leaves running.

Each check says which ends count as held. Where the kernel can't enforce a limit on this
machine, the check is what a look every 0.1 s can do.
"""

from tests.envs.sandbox.harness import Check

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
    "one_long_line": Check(
        "import os\nline = b'x' * 10**7\nos.write(1, line)", ("output_limit",), None
    ),
    "no_text": Check(
        "import os; os.write(1, bytes(range(128, 256)))", ("ok",), bytes(range(128, 256))
    ),
    "closed": Check("import os; os.closerange(0, 1000); os._exit(0)", ("ok",), b""),
    "closed_by_one_that_stays": Check(
        "import os, time\nos.close(1), os.close(2)\ntime.sleep(60)", ("timeout",), b"", _SHORT
    ),
    "that_never_blocks": Check(
        """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)
while True:
    try:
        os.write(1, b'x' * 4096)
    except BlockingIOError:
        pass
""",
        ("output_limit",),
        None,
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
    "large_environments": Check(
        """
import os, sys
size = 1 << 12
try:
    while size < 1 << 30:
        size *= 2
        pid = os.posix_spawn(sys.executable, ['python', '-c', ''], {'X': 'x' * size})
        os.waitpid(pid, 0)
    print(size)
except (OSError, MemoryError):
    print('held')
"""
    ),
    "many_arguments": Check(
        """
import os, sys
try:
    os.execv(sys.executable, ['python', '-c', 'print(1)', *['x' * 1000] * 20_000])
except OSError:
    print('held')
"""
    ),
    "timers": Check(
        """
import ctypes
libc, made, timer = ctypes.CDLL(None), 0, ctypes.c_void_p()
while made < 100_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0:
    made += 1
print('held' if made <= 1024 else made)
"""
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
    "one_process": Check("x = bytearray(10**9)", ("oom", "error"), b"", _MEMORY),
    "slowly": Check(
        "held = []\nwhile True: held.append(bytearray(10**6))", ("oom",), b"", _MEMORY
    ),
    "shared_pages": Check(
        """
import mmap
held = mmap.mmap(-1, 1 << 30)  # shared, so of no process alone
for at in range(0, 1 << 30, 4096):
    held[at] = 1
""",
        ("oom", "error"),
        b"",
        _MEMORY,
    ),
    "tables_of_pages": Check(
        """
import mmap
try:
    held = mmap.mmap(-1, 1 << 37, flags=mmap.MAP_PRIVATE | 0x4000)
    for at in range(0, 1 << 37, 1 << 21):
        held[at]
except (OSError, MemoryError):
    print('held')
""",
        ("oom", "ok"),
        b"held",
        _MEMORY,
    ),
    "pipes": Check(
        """
import fcntl, os
held = 0
try:
    while True:
        _, end = os.pipe()
        fcntl.fcntl(end, 1031, 1 << 20)  # F_SETPIPE_SZ
        held += os.write(end, b'x' * (1 << 20))
except OSError:
    print('held' if held < 64 << 20 else held)
""",
        ("ok", "oom"),
        b"held",
        _MEMORY,
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
    "a_deep_tree": Check(
        """
import os
try:
    for _ in range(20_000):
        os.mkdir('d')
        os.chdir('d')
except OSError:
    pass
print('held')
""",
        ("ok", "killed", "oom"),
        None,
    ),
    "hard_links": Check(
        """
import os
open('file', 'w').close()
try:
    for number in range(10**6):
        os.link('file', f'link-{number}')
except OSError:
    print('held')
""",
        ("ok", "killed", "oom", "timeout"),
        b"held",
        {"wall_seconds": 5.0},
    ),
    "extended_attributes": Check(
        """
import os
open('file', 'w').close()
try:
    for number in range(4000):
        os.setxattr('file', f'user.{number}', b'x' * 60_000)
    print('wrote 240 MB')
except OSError:
    print('held')
""",
        ("ok", "killed", "oom"),
    ),
    "its_own_folder_locked": Check(
        """
import os
try:
    os.chmod('/work', 0)
except OSError:
    pass
print('held')
"""
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
        """
import os, time
pid = os.fork()
if pid == 0:
    time.sleep(60)
os.kill(-1, 9)
print('held' if os.waitpid(pid, 0)[1] == 9 else 'its child lives')
"""
    ),
    "kill_itself": Check("import os; os.kill(0, 9)", ("error",), b"", {}, ("signal 9",)),
    "deep_source": Check("(" * 3000, ("error",), b"", {}, ("exit 1",)),
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
