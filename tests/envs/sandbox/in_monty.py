"""The same attempts in Monty's part of Python, or why one can't even be written in it.

Each reason is the name of a check in `WHY` that shows it to be true.
"""

from tests.envs.sandbox.harness import Check

_PRELUDE = """
import os, sys
from pathlib import Path
found = []
def refused(name, call):
    try:
        got = call()
    except Exception as error:
        return
    found.append(f"{name}: {got!r}")
"""
_END = """
print("\\n".join(found) or "held")
"""


def attempt(code: str, **fields: object) -> Check:
    return Check(_PRELUDE + code + _END, **fields)  # type: ignore[arg-type]


def reading(*paths: str) -> Check:
    """Try to see these paths in all ways that there are."""
    return attempt(f"""
for path in {paths!r}:
    refused(path, lambda: open(path).read())
    refused(path, lambda: open(path, 'rb').read(1))
    refused(path, lambda: Path(path).read_text())
    refused(path, lambda: Path(path).exists() or [].missing)
    refused(path, lambda: os.listdir(path))
    refused(path, lambda: os.stat(path))
    refused(path, lambda: list(Path(path).iterdir()))
""")


def writing(*paths: str) -> Check:
    """Try to change these paths in all ways that there are."""
    return attempt(f"""
for path in {paths!r}:
    refused(path, lambda: open(path, 'w').write('x'))
    refused(path, lambda: open(path, 'ab').write(b'x'))
    refused(path, lambda: Path(path).write_text('x'))
    refused(path, lambda: Path(path + '/planted').mkdir())
    refused(path, lambda: os.mkdir(path + '/planted'))
    refused(path, lambda: os.rename(path, path + '.old'))
    refused(path, lambda: os.remove(path))
    refused(path, lambda: Path(path).unlink())
""")


def missing(module: str, *names: str) -> Check:
    """Show that a module has none of these functions."""
    calls = "\n".join(f"refused({name!r}, lambda: {module}.{name})" for name in names)
    return attempt(f"import {module}\n{calls}")


_SHORT = {"wall_seconds": 0.4}
_MEMORY = {"memory_bytes": 64 << 20, "wall_seconds": 8.0}

WHY: dict[str, Check] = {
    "no module reaches the kernel": attempt("""
def try_all():
    try:
        import ctypes
        found.append('ctypes')
    except ImportError:
        pass
    try:
        import socket
        found.append('socket')
    except ImportError:
        pass
    try:
        import signal
        found.append('signal')
    except ImportError:
        pass
    try:
        import fcntl
        found.append('fcntl')
    except ImportError:
        pass
    try:
        import mmap
        found.append('mmap')
    except ImportError:
        pass
    try:
        import resource
        found.append('resource')
    except ImportError:
        pass
    try:
        import importlib
        found.append('importlib')
    except ImportError:
        pass
try_all()
refused('__import__', lambda: __import__('ctypes'))
refused('exec', lambda: exec('import ctypes') or ctypes)
refused('modules', lambda: sys.modules['ctypes'])
refused('subclasses', lambda: ().__class__.__base__.__subclasses__())
refused('globals', lambda: (lambda: 0).__globals__)
"""),
    "no process or thread can be started": attempt("""
def try_all():
    try:
        import subprocess
        found.append('subprocess')
    except ImportError:
        pass
    try:
        import multiprocessing
        found.append('multiprocessing')
    except ImportError:
        pass
    try:
        import threading
        found.append('threading')
    except ImportError:
        pass
    try:
        import _thread
        found.append('_thread')
    except ImportError:
        pass
try_all()
refused('fork', lambda: os.fork)
refused('system', lambda: os.system)
refused('popen', lambda: os.popen)
refused('exec', lambda: os.execv)
refused('spawn', lambda: os.posix_spawn)
"""),
    "no process can be named": missing(
        "os",
        "kill",
        "killpg",
        "getpid",
        "getppid",
        "pidfd_open",
        "setpriority",
        "sched_setaffinity",
        "wait",
        "_exit",
        "abort",
    ),
    "no descriptor can be named": missing(
        "os", "open", "read", "write", "close", "dup", "pipe", "fstat", "memfd_create", "openpty"
    ),
    "no user can be named": missing("os", "setuid", "setgid", "getuid", "chroot", "nice", "uname"),
    "no file can be made": writing("x", "./x", "/tmp/x", "/dev/shm/x"),
}
_KERNEL, _START, _PROCESS, _DESCRIPTOR, _USER, _FILE = WHY

IN_MONTY: dict[str, Check | str] = {
    # Escapes.
    "environment": attempt("""
refused('environ', lambda: os.environ)
refused('getenv', lambda: os.getenv('PATH'))
"""),
    "environment_of_other_processes": reading("/proc/self/environ", "/proc/1/environ"),
    "installed_packages": attempt("""
def try_all():
    try:
        import trio
        found.append('trio')
    except ImportError:
        pass
    try:
        import headrace
        found.append('headrace')
    except ImportError:
        pass
try_all()
refused('path', lambda: sys.path)
"""),
    "other_processes": reading("/proc", "/proc/1/cmdline", "/proc/self/status"),
    "password_files_and_homes": reading("/etc/passwd", "/etc/shadow", "/home", "/root", "~/.ssh"),
    "inherited_descriptors": attempt("""
for number in range(64):
    refused(number, lambda: open(number).read(1))
"""),
    "core_dumps": _PROCESS,
    "sysfs_and_control_groups": reading("/sys", "/sys/fs/cgroup", "/proc/self/cgroup"),
    "host_name_and_user": _USER,
    "devices": reading("/dev", "/dev/null", "/dev/mem", "/dev/urandom"),
    "kernel_files": reading("/proc/kcore", "/proc/kmsg", "/proc/kallsyms"),
    "the_runner": reading("/proc/self/mem", "/proc/self/maps", "/proc/self/fd", "/proc/self/exe"),
    "writing_outside": writing("/", "/usr", "/etc", "/tmp", "../up", "/dev"),
    "kernel_settings": writing("/proc/sys/kernel/hostname", "/proc/sysrq-trigger"),
    "the_interpreter": attempt("""
refused('itself', lambda: open(__file__).read())
refused('program', lambda: sys.executable or [].missing)
refused('code', lambda: refused.__code__)
refused('builtins', lambda: __builtins__)
"""),
    "other_writable_mounts": writing("/tmp/x", "/var/tmp/x", "/run/x", "/dev/shm/x"),
    "device_nodes": missing("os", "mknod", "mkfifo", "makedev"),
    "external_address": _KERNEL,
    "interfaces": reading("/proc/net/dev", "/sys/class/net"),
    "names_of_hosts": reading("/etc/hosts", "/etc/resolv.conf"),
    "other_sockets": _KERNEL,
    "tracing": _KERNEL,
    "namespaces": missing("os", "unshare", "setns"),
    "mounts": _KERNEL,
    "parts_of_the_kernel_with_a_past": _KERNEL,
    "the_machine": _KERNEL,
    "system_calls_of_the_future": _KERNEL,
    "terminal_input": reading("/dev/tty", "/dev/pts"),
    "rights": _USER,
    "programs_of_other_users": _START,
    "limits_of_the_runner": _KERNEL,
    "raised_limits": attempt("""
refused('recursion', lambda: sys.setrecursionlimit(10**9))
"""),
    "signals_to_the_runner": _PROCESS,
    "slowing_the_runner_down": _PROCESS,
    "the_first_process": reading("/proc/1/environ", "/proc/1/root", "/proc/1/mem", "/proc/1/fd"),
    "settings_of_its_own_process": _KERNEL,
    "memory_and_users_in_proc": writing("/proc/self/oom_score_adj", "/proc/self/uid_map"),
    "its_input_through_proc": reading("/proc/self/fd/0", "/dev/stdin"),
    "a_privileged_program_of_its_own": _START,
    "programs_without_a_file": _DESCRIPTOR,
    "queues_of_messages": reading("/dev/mqueue"),
    "shared_memory": writing("/dev/shm/x"),
    "clocks": attempt("""
import time
refused('set', lambda: time.clock_settime(0, 0))
now = time.monotonic()
time.sleep(1000)
if time.monotonic() - now > 500:
    found.append('it slept')
"""),
    "urgency": _USER,
    "ports_of_the_machine": reading("/dev/port", "/dev/mem"),
    "calls_of_another_architecture": _KERNEL,
    "names_of_limits": Check(
        "import sys\nprint('MemoryError', file=sys.stderr)\nraise ValueError",
        ("error",),
        b"",
        causes=("exit 1",),
    ),
    "signals_of_limits": Check(
        "raise TimeoutError('feed time limit exceeded: 10.2s > 10s')",
        ("error",),
        b"",
        causes=("exit 1",),
    ),
    "a_made_up_lack_of_memory": Check(
        "raise MemoryError('memory limit exceeded: 100663297 bytes > 100663296 bytes')",
        ("error",),
        b"",
        causes=("exit 1",),
    ),
    "host_temporary_files": reading("/tmp"),
    "this_repository": reading("/", "/work", "."),
    "loopback": _KERNEL,
    "abstract_unix_socket": _KERNEL,
    # Time.
    "time-spin": Check("while True: pass", ("timeout",), b"", _SHORT, ("wall limit",)),
    "time-sleep": Check(
        "import time\nwhile True: time.sleep(1)", ("timeout",), b"", _SHORT, ("wall limit",)
    ),
    "time-cpu_time": Check(
        "while True: pass", ("timeout",), b"", {"cpu_seconds": 0.3}, ("cpu limit",)
    ),
    "time-ignored_signals": Check(
        """
while True:
    try:
        while True: pass
    except BaseException:
        pass
""",
        ("timeout",),
        b"",
        _SHORT,
    ),
    "time-ignored_cpu_signal": Check(
        "x = 3 ** (10 ** 8)", ("timeout", "oom"), b"", {"cpu_seconds": 0.3}
    ),
    "time-stopped_itself": Check(
        "import asyncio\nawait asyncio.Event().wait()",
        ("timeout", "error"),
        b"",
        _SHORT,
    ),
    # Output.
    "output-stdout": Check("while True: print('x' * 100)", ("output_limit",), None),
    "output-stderr": Check(
        "import sys\nwhile True: print('x' * 100, file=sys.stderr)", ("output_limit",), None
    ),
    "output-stdout_from_below": _DESCRIPTOR,
    "output-one_long_line": Check("print('x' * 10**7)", ("output_limit",), None),
    "output-no_text": Check("print('\\udcff')", ("ok", "error"), None),
    "output-closed": Check("import sys\nsys.stdout.close()", ("ok", "error"), b""),
    "output-closed_by_one_that_stays": _DESCRIPTOR,
    "output-that_never_blocks": _DESCRIPTOR,
    "output-exactly_full": Check("print('x' * 4095)", ("ok",), b"x" * 4095),
    "output-one_byte_more": Check("print('x' * 4096)", ("output_limit",), None),
    # Processes.
    "processes-fork_bomb": _START,
    "processes-thread_bomb": Check(
        """
import asyncio
async def one(): await asyncio.sleep(0)
async def all(): await asyncio.gather(*[one() for _ in range(10**7)])
asyncio.run(all())
""",
        ("timeout", "oom", "error"),
        b"",
        {"wall_seconds": 5.0, "cpu_seconds": 1.0},
    ),
    "processes-large_environments": _START,
    "processes-many_arguments": _START,
    "processes-timers": _KERNEL,
    "processes-zombies": _START,
    "processes-descriptors": _DESCRIPTOR,
    "processes-recursion": Check("def f(): return f()\nf()", ("error",), b"", {}, ("exit 1",)),
    # Memory.
    "memory-one_process": Check("x = 'a' * 10**9", ("oom",), b"", _MEMORY),
    "memory-slowly": Check(
        "held = []\nwhile True: held.append('a' * 10**6)", ("oom",), b"", _MEMORY
    ),
    "memory-shared_pages": _KERNEL,
    "memory-tables_of_pages": Check(
        "held = {}\nfor n in range(10**8): held[n] = n", ("oom", "timeout"), b"", _MEMORY
    ),
    "memory-pipes": _DESCRIPTOR,
    "memory-many_processes": _START,
    # Files.
    "disk-one_large_file": _FILE,
    "disk-sparse_file": _FILE,
    "disk-many_large_files": _FILE,
    "disk-a_deep_tree": _FILE,
    "disk-hard_links": _FILE,
    "disk-extended_attributes": _FILE,
    "disk-its_own_folder_locked": _FILE,
    "disk-many_files": _FILE,
    # What is left.
    "left_behind-daemon": _START,
    "left_behind-grandchild_with_the_pipe": _START,
    "left_behind-many_daemons": _START,
    "left_behind-a_tree_that_ignores_signals": _START,
    "violence-kill_all": _PROCESS,
    "violence-kill_itself": _PROCESS,
    "violence-deep_source": Check("(" * 3000, ("error",), b"", {}, ("exit 1",)),
    "violence-segfault": Check(
        "x = []\nfor _ in range(10**5): x = [x]\nprint(len(repr(x)) > 0, x == x)",
        ("error", "ok", "killed", "oom"),
        None,
    ),
    "violence-abort": _PROCESS,
    "violence-exit_code": Check("raise SystemExit(7)", ("error",), b"", {}, ("exit 1",)),
}
