"""More that hostile code tries: against the runner, by files in `/proc`, by its own settings."""

from tests.envs.sandbox.escapes import attempt
from tests.envs.sandbox.harness import Check

MORE_ESCAPES: dict[str, Check] = {
    # The runner, whose death would be taken for a fault of the machine.
    "signals_to_the_runner": attempt("""
runner = os.getppid()
for number in (0, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGIO):
    for pid in (runner, -1, -os.getpgid(runner)):
        refused(f'kill {pid} {number}', lambda: os.kill(pid, number), errno.EPERM)
info = ctypes.create_string_buffer(128)
x86 = os.uname().machine == 'x86_64'
for name, call, arguments in (
    ('tkill', 200 if x86 else 130, (runner, 9)),
    ('tgkill', 234 if x86 else 131, (runner, runner, 9)),
    ('rt_sigqueueinfo', 129 if x86 else 138, (runner, 9, info)),
    ('rt_tgsigqueueinfo', 297 if x86 else 240, (runner, runner, 9, info)),
    ('pidfd_send_signal', 424, (os.pidfd_open(runner), 9, 0, 0)),
):
    refused(name, lambda: syscall(call, *arguments), errno.EPERM)
"""),
    "signals_by_way_of_files": attempt("""
import fcntl
ours, theirs = socket.socketpair()
runner = os.getppid()
F_SETOWN, F_SETOWN_EX, FIOSETOWN, SIOCSPGRP = 8, 15, 0x8901, 0x8902
refused('F_SETOWN', lambda: fcntl.fcntl(ours, F_SETOWN, runner), errno.EPERM)
owner = struct.pack('ii', 1, runner)
refused('F_SETOWN_EX', lambda: fcntl.fcntl(ours, F_SETOWN_EX, owner), errno.EPERM)
for request in (FIOSETOWN, SIOCSPGRP):
    word = struct.pack('i', runner)
    refused(hex(request), lambda: fcntl.ioctl(ours, request, word), errno.EPERM)
"""),
    "slowing_the_runner_down": attempt("""
runner = os.getppid()
refused('nice', lambda: os.setpriority(os.PRIO_PROCESS, runner, 19), errno.EPERM)
refused('nice all', lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19), errno.EPERM)
refused('nice group', lambda: os.setpriority(os.PRIO_PGRP, os.getpgid(runner), 19), errno.EPERM)
refused('idle', lambda: os.sched_setscheduler(runner, os.SCHED_IDLE, os.sched_param(0)))
refused('places', lambda: os.sched_setaffinity(runner, {0}), errno.EPERM)
"""),
    "the_first_process": attempt("""
for name in ('environ', 'mem', 'maps', 'fd', 'root', 'cwd', 'exe', 'fdinfo', 'stack'):
    path = f'/proc/1/{name}'
    try:
        is_folder = name in ('fd', 'fdinfo', 'root', 'cwd')
        got = os.listdir(path) if is_folder else open(path, 'rb').read(1)
    except OSError:
        continue
    if got:
        found.append((name, got))
"""),
    # Its own settings.
    "settings_of_its_own_process": attempt("""
def prctl(*arguments):
    if libc.prctl(*arguments):
        raise OSError(ctypes.get_errno(), 'refused')
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_SECUREBITS, PR_SET_MM = 4, 22, 28, 35
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 38, 47, 2
refused('dumpable by root alone', lambda: prctl(PR_SET_DUMPABLE, 2, 0, 0, 0), errno.EINVAL)
refused('no filter', lambda: prctl(PR_SET_SECCOMP, 0, 0, 0, 0))
refused('securebits', lambda: prctl(PR_SET_SECUREBITS, 0x2f, 0, 0, 0), errno.EPERM)
refused('mm', lambda: prctl(PR_SET_MM, 1, 0x10000, 0, 0))
refused('new rights', lambda: prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0), errno.EINVAL)
refused('ambient', lambda: prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0))
"""),
    "memory_and_users_in_proc": attempt("""
def write(path, text):
    return os.write(os.open(path, os.O_WRONLY), text.encode())
for name, text in (('oom_score_adj', '-1000'), ('uid_map', '0 0 1'), ('gid_map', '0 0 1'),
                   ('setgroups', 'allow')):
    refused(name, lambda: write('/proc/self/' + name, text))
refused('last pid', lambda: write('/proc/sys/kernel/ns_last_pid', '1'))
"""),
    "its_input_through_proc": attempt("""
refused('stdin', lambda: os.write(os.open('/proc/self/fd/0', os.O_RDWR), b'x'))
refused('grow', lambda: os.ftruncate(0, 1 << 20))
"""),
    "a_privileged_copy_of_a_program": attempt(
        """
import shutil
copy = shutil.copy('/bin/python3' if os.path.exists('/bin/python3') else sys.executable, 'copy')
os.chmod(copy, 0o6755)
pid = os.fork()
if pid == 0:
    os.execv(copy, [copy, '-I', '-S', '-c', 'import os; os._exit(os.geteuid() == 0)'])
_, status = os.waitpid(pid, 0)
if status == 256:
    found.append('root')
try:
    os.setxattr(copy, 'security.capability', struct.pack('<5I', 0x2000001, 1 << 21, 0, 0, 0))
except OSError:
    pass
else:
    found.append('capability')
""",
        limits={"file_bytes": 32 << 20},
    ),
    "programs_without_a_file": attempt("""
import mmap
refused('memfd', lambda: os.memfd_create('x'), errno.EPERM)
refused('secret', lambda: syscall(447, 0), errno.EPERM)
"""),
    "queues_of_messages": attempt("""
number = 240 if os.uname().machine == 'x86_64' else 180
refused('mq_open', lambda: syscall(number, b'queue', 0o102, 0o600, 0), errno.EPERM)
refused('folder', lambda: os.listdir('/dev/mqueue'))
import resource
if resource.getrlimit(12) != (0, 0):  # RLIMIT_MSGQUEUE
    found.append('limit')
"""),
    "shared_memory": attempt("""
import _posixshmem
fd = _posixshmem.shm_open('/headrace-shared', os.O_CREAT | os.O_RDWR, mode=0o600)
os.ftruncate(fd, 4096)
if not os.path.exists('/work/headrace-shared'):
    found.append('it lies outside of the folder')
_posixshmem.shm_unlink('/headrace-shared')
"""),
    "clocks": attempt("""
refused('clock', lambda: time.clock_settime(time.CLOCK_REALTIME, 0), errno.EPERM)
now = time.clock_gettime(time.CLOCK_MONOTONIC)
refused('monotonic', lambda: time.clock_settime(time.CLOCK_MONOTONIC, now))
for name in ('/dev/rtc', '/dev/rtc0', '/dev/ptp0'):
    refused(name, lambda: os.open(name, os.O_RDONLY))
refused('offsets', lambda: os.write(os.open('/proc/self/timens_offsets', os.O_WRONLY),
    b'monotonic 99 0'))
"""),
    "urgency": attempt("""
refused('nice', lambda: os.nice(-5) and None if os.nice(0) > -1 else None, errno.EPERM)
refused('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
refused('locked', lambda: syscall(149 if os.uname().machine == 'x86_64' else 228,
    ctypes.create_string_buffer(1 << 20), 1 << 20))
"""),
    "ports_of_the_machine": attempt("""
if os.uname().machine == 'x86_64':
    refused('ioperm', lambda: syscall(173, 0x80, 1, 1), errno.EPERM)
    refused('iopl', lambda: syscall(172, 3), errno.EPERM)
refused('/dev/port', lambda: os.open('/dev/port', os.O_RDONLY))
refused('/dev/mem', lambda: os.open('/dev/mem', os.O_RDONLY))
"""),
    "calls_of_another_architecture": Check(
        """
import ctypes, mmap, os
if os.uname().machine == 'x86_64':  # int 0x80, which takes the numbers of 32 bits
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(bytes.fromhex('b814000000cd80c3'))
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    print('got', ctypes.CFUNCTYPE(ctypes.c_long)(place)())
else:
    os.abort()
""",
        ("error",),
        b"",
        causes=("signal 31", "signal 11", "signal 6"),
    ),
    "names_of_limits": Check(
        """
import sys
print('MemoryError', file=sys.stderr)
raise SystemExit(1)
""",
        ("error",),
        b"",
        causes=("exit 1",),
    ),
    "signals_of_limits": Check(
        "import os, signal; os.kill(os.getpid(), signal.SIGXCPU)",
        ("error",),
        b"",
        causes=("signal 24",),
    ),
    "a_made_up_lack_of_memory": Check(
        "raise MemoryError('memory limit')", ("error",), b"", causes=("exit 1",)
    ),
}
