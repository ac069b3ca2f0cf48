"""What hostile code tries in order to get out, to look around, or to write where it may not.

Each program prints "held" if it got nowhere, and else what it got.
"""

import sys
from pathlib import Path

from tests.envs.sandbox.harness import Check

SECRET = "s3cr3t-of-the-host"
_PRELUDE = """
import ctypes, errno, os, signal, socket, struct, sys, time
found = []
def refused(name, call, *errors):
    try:
        got = call()
    except OSError as error:
        if errors and error.errno not in errors:
            found.append(f"{name}: {error}")
    else:
        found.append(f"{name}: {got!r}")
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def syscall(*arguments):
    result = libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
NUMBERS = {
    "x86_64": dict(ptrace=101, process_vm_readv=310, mount=165, pivot_root=155, chroot=161,
        unshare=272, setns=308, clone=56, clone3=435, bpf=321, keyctl=250, add_key=248,
        io_uring_setup=425, userfaultfd=323, perf_event_open=298, clock_settime=227,
        personality=135, memfd_create=319, shmget=29, msgget=68, open_tree=428, kcmp=312,
        pidfd_getfd=438, init_module=175, kexec_load=246, reboot=169, swapon=167, syslog=103,
        sethostname=170, prlimit64=302, name_to_handle_at=303, fanotify_init=300, future=467),
    "aarch64": dict(ptrace=117, process_vm_readv=270, mount=40, pivot_root=41, chroot=51,
        unshare=97, setns=268, clone=220, clone3=435, bpf=280, keyctl=219, add_key=217,
        io_uring_setup=425, userfaultfd=282, perf_event_open=241, clock_settime=112,
        personality=92, memfd_create=279, shmget=194, msgget=186, open_tree=428, kcmp=272,
        pidfd_getfd=438, init_module=105, kexec_load=104, reboot=142, swapon=224, syslog=116,
        sethostname=161, prlimit64=261, name_to_handle_at=264, fanotify_init=262, future=467),
}[os.uname().machine]
"""
_END = """
print("\\n".join(found) or "held")
"""


def attempt(code: str, **fields: object) -> Check:
    return Check(_PRELUDE + code + _END, **fields)  # type: ignore[arg-type]


def host_attempts(port: int, name: str, marker: Path) -> dict[str, Check]:
    """Return the checks that look for what this test has put on the machine."""
    home = Path(__file__).resolve().parents[3]
    return {
        "host_temporary_files": attempt(
            f"refused('file', lambda: open({str(marker)!r}).read())\n"
            f"found += [n for n in os.listdir('/tmp') if n == {marker.name!r}]"
        ),
        "this_repository": attempt(f"refused('repository', lambda: os.listdir({str(home)!r}))"),
        "loopback": attempt(
            "socket.setdefaulttimeout(2)\n"
            f"refused('tcp', lambda: socket.create_connection(('127.0.0.1', {port})))"
        ),
        "abstract_unix_socket": attempt(
            "s = socket.socket(socket.AF_UNIX)\n"
            f"refused('unix', lambda: s.connect('\\0' + {name!r}))"
        ),
    }


ESCAPES: dict[str, Check] = {
    # Secrets, and what there is to see.
    "environment": attempt(
        "found += set(os.environ) - {'PATH', 'LANG', 'PYTHONHASHSEED', 'HOME', 'TMPDIR'}"
    ),
    "environment_of_other_processes": attempt(f"""
for pid in (name for name in os.listdir('/proc') if name.isdigit()):
    try:
        content = open(f'/proc/{{pid}}/environ', 'rb').read()
    except OSError:
        continue
    if {SECRET!r}.encode() in content:
        found.append(pid)
"""),
    "installed_packages": attempt("""
import sysconfig
library = sysconfig.get_path("stdlib")
for name in ("site-packages", "dist-packages"):
    folder = os.path.join(library, name)
    if os.path.isdir(folder) and os.listdir(folder):
        found.append(f"{folder}: {os.listdir(folder)[:3]}")
    refused(f"write in {folder}", lambda: open(os.path.join(folder, "x.py"), "w"))
"""),
    "other_processes": attempt(
        "found += [name for name in os.listdir('/proc') if name.isdigit() and int(name) > 9]"
    ),
    "password_files_and_homes": attempt(f"""
for path in ('/etc/passwd', '/etc/shadow', '/home', {str(Path.home() / ".ssh")!r}, '/var', '/run',
             '/mnt', '/opt', '/boot', '/srv', '/etc/hostname', '/etc/resolv.conf'):
    refused(path, lambda: os.stat(path))
"""),
    "inherited_descriptors": attempt("""
for fd in range(3, 4096):
    refused(fd, lambda: os.fstat(fd), errno.EBADF)
"""),
    "core_dumps": attempt("""
import resource
if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
    found.append('core limit')
pid = os.fork()
if pid == 0:
    os.abort()
os.waitpid(pid, 0)
found += [name for name in os.listdir('.') if 'core' in name]
"""),
    "sysfs_and_control_groups": attempt("""
refused('/sys', lambda: os.listdir('/sys'))
found += [line for line in open('/proc/self/cgroup').read().split() if not line.endswith(':/')]
"""),
    "host_name_and_user": attempt("""
if socket.gethostname() != 'sandbox':
    found.append(socket.gethostname())
if 0 in os.getresuid() + os.getresgid() or os.getgroups() not in ([], [65534], [1000]):
    found.append((os.getresuid(), os.getgroups()))
"""),
    "devices": attempt("""
known = {'null', 'zero', 'full', 'random', 'urandom', 'fd', 'shm'}
found += set(os.listdir('/dev')) - known
"""),
    "kernel_files": attempt("""
for path in ('/proc/kcore', '/proc/kmsg', '/dev/kmsg', '/dev/mem', '/proc/kallsyms'):
    try:
        content = open(path, 'rb').read(200)
    except OSError:
        continue
    if content.strip(b'0 \\n') and b'0000000000000000' not in content:
        found.append(path)
"""),
    "the_runner": attempt("""
runner = os.getppid()
for name in ('environ', 'mem', 'maps', 'fd', 'root', 'cwd', 'exe'):
    path = f'/proc/{runner}/{name}'
    try:
        got = os.listdir(path) if name == 'fd' else open(path, 'rb').read(1)
    except OSError:
        continue
    found.append((name, got))
"""),
    # Writing.
    "writing_outside": attempt(f"""
import stat
for folder in ('/', '/usr', '/lib', '/lib64', '/etc', '/dev', '/proc', '/proc/sys/kernel', '/bin',
               '/root', os.path.dirname(os.__file__), {str(Path(sys.executable).parent)!r}):
    refused(folder, lambda: open(folder + '/planted', 'w'))
"""),
    "kernel_settings": attempt("""
for name in ('sys/kernel/hostname', 'sys/kernel/core_pattern', 'sys/vm/swappiness',
             'sys/kernel/modprobe', 'sysrq-trigger', 'sys/fs/file-max'):
    path = '/proc/' + name
    refused(path, lambda: open(path, 'w').write('1'))
"""),
    "the_interpreter": attempt("""
refused('os.py', lambda: open(os.__file__, 'a'))
refused('python', lambda: open(sys.executable, 'ab'))
refused('rename', lambda: os.rename(os.__file__, os.__file__ + '.old'))
refused('chmod', lambda: os.chmod(os.__file__, 0o777))
refused('link', lambda: os.link(os.__file__, 'os.py'))
"""),
    "other_writable_mounts": attempt("""
for line in open('/proc/mounts'):
    _, folder, kind, options, *_ = line.split()
    if folder.startswith('/work') or not os.path.isdir(folder):
        continue
    refused(folder, lambda: os.mkdir(folder + '/planted'))
"""),
    "device_nodes": attempt("""
refused('block', lambda: os.mknod('disk', 0o60666, os.makedev(8, 0)))
refused('character', lambda: os.mknod('mem', 0o20666, os.makedev(1, 1)))
"""),
    # Network.
    "external_address": attempt("""
socket.setdefaulttimeout(2)
refused('tcp', lambda: socket.create_connection(('1.1.1.1', 80)))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
refused('udp', lambda: udp.sendto(b'x', ('8.8.8.8', 53)))
"""),
    "interfaces": attempt("""
names = {line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]}
found += names - {'lo', 'tunl0', 'sit0', 'ip6tnl0', 'gre0', 'gretap0', 'erspan0', 'ip_vti0'}
"""),
    "names_of_hosts": attempt("refused('dns', lambda: socket.getaddrinfo('example.com', 80))"),
    "other_sockets": attempt("""
families = dict(netlink=16, packet=17, alg=38, vsock=40, bluetooth=31, can=29, xdp=44, rds=21)
for name, family in families.items():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        refused(f'{name} {kind}', lambda: socket.socket(family, kind), errno.EAFNOSUPPORT)
refused('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
"""),
    # The kernel's surface.
    "tracing": attempt("""
refused('traceme', lambda: syscall(NUMBERS['ptrace'], 0, 0, 0, 0), errno.EPERM)
refused('attach', lambda: syscall(NUMBERS['ptrace'], 16, os.getppid(), 0, 0), errno.EPERM)
refused('readv', lambda: syscall(NUMBERS['process_vm_readv'], 1, 0, 0, 0, 0, 0), errno.EPERM)
refused('kcmp', lambda: syscall(NUMBERS['kcmp'], 1, 2, 0, 0, 0), errno.EPERM)
refused('getfd', lambda: syscall(NUMBERS['pidfd_getfd'], os.pidfd_open(os.getppid()), 3, 0),
    errno.EPERM)
"""),
    "namespaces": attempt("""
for name, flag in dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000).items():
    refused(f'unshare {name}', lambda: syscall(NUMBERS['unshare'], flag), errno.EPERM)
    refused(f'clone {name}', lambda: syscall(NUMBERS['clone'], flag | 17, 0, 0, 0, 0), errno.EPERM)
refused('clone3', lambda: syscall(NUMBERS['clone3'], 0, 0), errno.ENOSYS)
refused('setns', lambda: syscall(NUMBERS['setns'], os.open('/proc/self/ns/net', 0), 0))
"""),
    "mounts": attempt("""
refused('mount', lambda: syscall(NUMBERS['mount'], b'none', b'/work', b'tmpfs', 0, 0), errno.EPERM)
refused('open_tree', lambda: syscall(NUMBERS['open_tree'], -100, b'/', 1), errno.EPERM)
refused('chroot', lambda: os.chroot('/work'), errno.EPERM)
refused('pivot_root', lambda: syscall(NUMBERS['pivot_root'], b'.', b'.'), errno.EPERM)
refused('handle', lambda: syscall(NUMBERS['name_to_handle_at'], -100, b'/', 0, 0, 0), errno.EPERM)
"""),
    "parts_of_the_kernel_with_a_past": attempt("""
for name in ('bpf', 'keyctl', 'add_key', 'io_uring_setup', 'userfaultfd', 'perf_event_open',
             'personality', 'memfd_create', 'shmget', 'msgget', 'fanotify_init'):
    refused(name, lambda: syscall(NUMBERS[name], 0, 0, 0, 0, 0, 0), errno.EPERM)
"""),
    "the_machine": attempt("""
for name in ('clock_settime', 'init_module', 'kexec_load', 'reboot', 'swapon', 'syslog',
             'sethostname'):
    refused(name, lambda: syscall(NUMBERS[name], 0, 0, 0, 0, 0), errno.EPERM)
"""),
    "system_calls_of_the_future": attempt("""
refused('future', lambda: syscall(NUMBERS['future'], 0, 0, 0, 0), errno.ENOSYS)
if os.uname().machine == 'x86_64':
    refused('x32', lambda: syscall(0x40000000 + 39), errno.ENOSYS)
"""),
    "terminal_input": attempt("""
import fcntl
for request in (0x5412, 0x541C):
    refused(hex(request), lambda: fcntl.ioctl(0, request, b'x'), errno.EPERM)
refused('terminal', lambda: open('/dev/tty'))
refused('new terminal', lambda: os.openpty())
"""),
    "rights": attempt("""
status = dict(line.split(':', 1) for line in open('/proc/self/status').read().splitlines())
for name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb'):
    if int(status[name], 16):
        found.append((name, status[name]))
if status['NoNewPrivs'].strip() != '1' or status['Seccomp'].strip() != '2':
    found.append((status['NoNewPrivs'], status['Seccomp']))
for uid in (0, 1):
    refused(f'uid {uid}', lambda: os.setuid(uid))
    refused(f'gid {uid}', lambda: os.setgid(uid))
"""),
    "programs_of_other_users": attempt(
        """
import stat
for folder, _, names in os.walk('/'):
    if folder.startswith('/proc'):
        continue
    for name in names:
        try:
            mode = os.lstat(os.path.join(folder, name)).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            flags = os.statvfs(os.path.join(folder, name)).f_flag
            if not flags & os.ST_NOSUID:
                found.append(os.path.join(folder, name))
""",
        limits={"cpu_seconds": 30.0, "wall_seconds": 60.0},
    ),
    "limits_of_the_runner": attempt("""
import resource
runner, cpu = os.getppid(), resource.RLIMIT_CPU
refused('prlimit', lambda: resource.prlimit(runner, cpu, (1, 1)), errno.EPERM)
"""),
    "raised_limits": attempt("""
import resource
for name in ('AS', 'NOFILE', 'FSIZE', 'CPU', 'CORE', 'NPROC'):
    number = getattr(resource, f'RLIMIT_{name}')
    _, hard = resource.getrlimit(number)
    try:
        resource.setrlimit(number, (hard, hard + 1 if hard >= 0 else hard))
    except (ValueError, OSError):
        continue
    if hard >= 0:
        found.append(name)
"""),
}
