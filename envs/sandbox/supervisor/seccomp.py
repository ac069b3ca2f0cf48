"""The filter for system calls, as the BPF program that the kernel runs before each of them.

A program in the sandbox needs files, memory, threads and processes. What changes the machine,
looks into other processes, makes namespaces, or has a history of holes is refused with EPERM;
calls newer than this table don't exist for it (ENOSYS), nor do those of another architecture
(the process is killed). Sockets are UNIX and INET only, since a network namespace doesn't
cover the others.

Invariant: a program's length and jumps don't depend on the machine that builds it.
"""

import errno
import struct
from collections.abc import Mapping, Sequence

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEWEST = 452  # fchmodat2; numbers from 424 on are the same on all architectures

_NEW_NAMESPACES = 0x7E020000  # mount, cgroup, uts, ipc, user, pid, net
_SOCKET_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_FIRST_PROCESS = 1  # the runner, which the kernel keeps from signals but not from being slowed

# Number on x86_64, number on aarch64; None where the call doesn't exist.
_DENIED: Mapping[str, tuple[int, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    # namespaces and mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # parts of the kernel that programs don't need
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    "vmsplice": (278, 75),
    "remap_file_pages": (216, 234),
    "set_mempolicy": (238, 237),
    "mbind": (237, 235),
    "set_mempolicy_home_node": (450, 450),
    # memory that no limit of a process counts
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # the machine itself
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
}
# clone3 hides its flags in memory; without it, the C library falls back to clone.
_MISSING: Mapping[str, tuple[int, int | None]] = {"clone3": (435, 435)}
_CHECKED: Mapping[str, tuple[int, int | None]] = {
    "clone": (56, 220),
    "socket": (41, 198),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
}
# Number on x86_64, number on aarch64, the argument that names a process.
_SLOWING: Mapping[str, tuple[int, int, int]] = {
    "setpriority": (141, 140, 1),
    "ioprio_set": (251, 30, 1),
    "sched_setparam": (142, 118, 0),
    "sched_setscheduler": (144, 119, 0),
    "sched_setattr": (314, 274, 0),
    "sched_setaffinity": (203, 122, 0),
}
_OF_ONE_PROCESS: Mapping[str, int] = {"setpriority": 0, "ioprio_set": 1}  # not a group's or user's


def build(machine: str) -> bytes:
    """Build the program for a machine, as `bwrap --seccomp` reads it.

    Args:
      machine: as `os.uname().machine` says.

    Raises:
      ValueError: for a machine without a table; the caller says what that means.

    Example:
      >>> len(build("x86_64")) % 8
      0
    """
    if machine not in _AUDIT_ARCHITECTURE:
        known = " or ".join(_AUDIT_ARCHITECTURE)
        raise ValueError(f"no table of system calls for {machine!r}; use {known}")
    column = list(_AUDIT_ARCHITECTURE).index(machine)
    program = _check_architecture(_AUDIT_ARCHITECTURE[machine])
    program += [(_AT_LEAST, 0, 1, _NEWEST + 1), _refuse(errno.ENOSYS)]
    program += _refuse_all(_MISSING, column, errno.ENOSYS)
    program += _refuse_all(_DENIED, column, errno.EPERM)
    for name, check in _argument_checks().items():
        program += _call(_CHECKED[name][column], check)
    for name, numbers in _SLOWING.items():
        program += _call(numbers[column], _unless_aimed_at_the_first(name, numbers[2]))
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def denied() -> Sequence[str]:
    """Return the names of the calls that are refused whatever their arguments."""
    return (*_DENIED, *_MISSING)


def _check_architecture(architecture: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _refuse_all(
    calls: Mapping[str, tuple[int, int | None]], column: int, error: int
) -> list[Instruction]:
    numbers = [numbers[column] for numbers in calls.values()]
    pairs = [[(_EQUAL, 0, 1, number), _refuse(error)] for number in numbers if number is not None]
    return [instruction for pair in pairs for instruction in pair]


def _argument_checks() -> dict[str, list[Instruction]]:
    """Give what runs for each call whose arguments decide; each list ends by returning."""
    allow, refuse = (_RETURN, 0, 0, _ALLOW), _refuse(errno.EPERM)
    families = [(_EQUAL, len(_SOCKET_FAMILIES) - i, 0, f) for i, f in enumerate(_SOCKET_FAMILIES)]
    return {
        "clone": [_low_half(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse, allow],
        "socket": [_low_half(0), *families, _refuse(errno.EAFNOSUPPORT), allow],
        "ioctl": [
            _low_half(1),
            (_EQUAL, 1, 0, _TERMINAL_INPUT[0]),
            (_EQUAL, 0, 1, _TERMINAL_INPUT[1]),
            refuse,
            allow,
        ],
        "prlimit64": [_low_half(0), (_EQUAL, 1, 0, 0), refuse, allow],  # of oneself only
    }


def _unless_aimed_at_the_first(name: str, argument: int) -> list[Instruction]:
    check = [_low_half(argument), (_EQUAL, 0, 1, _FIRST_PROCESS), _refuse(errno.EPERM)]
    if name in _OF_ONE_PROCESS:
        check += [_low_half(0), (_EQUAL, 1, 0, _OF_ONE_PROCESS[name]), _refuse(errno.EPERM)]
    return [*check, (_RETURN, 0, 0, _ALLOW)]


def _call(number: int | None, check: list[Instruction]) -> list[Instruction]:
    return [] if number is None else [(_EQUAL, 0, len(check), number), *check]


def _low_half(argument: int) -> Instruction:
    # These arguments are 32-bit integers, so the kernel ignores the upper half as well.
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)


def _refuse(error: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | error)
