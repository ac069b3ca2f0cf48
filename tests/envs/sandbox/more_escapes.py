"""More that hostile code tries: against the runner, by files in `/proc`, by its own settings."""

from tests.envs.sandbox.escapes import attempt
from tests.envs.sandbox.harness import Check

MORE_ESCAPES: dict[str, Check] = {
    # The runner, whose death would be taken for a fault of the machine.
    "signals_to_the_runner": attempt("""
import fcntl
runner = os.getppid()
def ignore(call):
    try:
        call()
    except OSError:
        pass
x86 = os.uname().machine == 'x86_64'
info, pidfd = ctypes.create_string_buffer(128), os.pidfd_open(runner)
for number in set(signal.Signals):
    ignore(lambda: os.kill(runner, number))
    ignore(lambda: syscall(200 if x86 else 130, runner, number))  # tkill
    ignore(lambda: syscall(234 if x86 else 131, runner, runner, number))  # tgkill
    ignore(lambda: syscall(129 if x86 else 138, runner, number, info))  # rt_sigqueueinfo
    ignore(lambda: signal.pidfd_send_signal(pidfd, number))
ours, theirs = socket.socketpair()
F_SETSIG, F_SETOWN = 10, 8
for number in (signal.SIGKILL, 0):
    ignore(lambda: fcntl.fcntl(ours, F_SETSIG, number))
    ignore(lambda: fcntl.fcntl(ours, F_SETOWN, runner))
    ignore(lambda: fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC))
    theirs.send(b'x')
time.sleep(0.05)
with open(f'/proc/{runner}/stat') as file:
    state = file.read().split()[2]
if state not in 'RS':
    found.append(state)
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
names = ('environ', 'mem', 'maps', 'fd', 'root', 'cwd', 'exe', 'fdinfo', 'stack', 'oom_score_adj')
for name in names:
    path = f'/proc/1/{name}'
    flags = os.O_RDWR if name in ('mem', 'oom_score_adj') else os.O_RDONLY
    refused(name, lambda: os.listdir(path) if name in ('fd', 'fdinfo') else os.open(path, flags))
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
    "a_privileged_program_of_its_own": attempt("""
def elf(code):  # a program without libraries, of 64 bits
    head = struct.pack('<4s5B7x2HI3QI6H', b'\x7fELF', 2, 1, 1, 0, 0, 2, 62, 1, 0x400078, 64, 0, 0,
        64, 56, 1, 0, 0, 0)
    size = 120 + len(code)
    return head + struct.pack('<2I6Q', 1, 5, 0, 0x400000, 0x400000, size, size, 4096) + code
with open('program', 'wb') as file:  # it exits with geteuid() == 0
    file.write(elf(bytes.fromhex('b86b0000000f0531ff85c0400f94c7b83c0000000f05')))
os.chmod('program', 0o6755)
if os.uname().machine == 'x86_64':
    pid = os.posix_spawn('program', ['program'], {})
    if os.waitpid(pid, 0)[1] != 0:
        found.append('root, or it did not run')
rights = struct.pack('<5I', 0x2000001, 1 << 21, 0, 0, 0)
refused('capability', lambda: os.setxattr('program', 'security.capability', rights))
"""),
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
if not os.path.exists('headrace-shared'):
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
