"""The filter of system calls, run by an interpreter of BPF written here."""

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.envs.sandbox.supervisor import seccomp

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL = 0x7FFF0000, 0x80000000
MACHINES = pytest.mark.parametrize("machine", ARCHITECTURES)


def run(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """Interpret the program on one call, as the kernel does; return what it returns."""
    arch = ARCHITECTURES[machine] if architecture is None else architecture
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, arch, 0, *padded)
    program = list(struct.iter_unpack("=HBBI", seccomp.build(machine)))
    at, held = 0, 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, constant)
        elif code == 0x06:
            return int(constant)
        else:
            tests = {
                0x15: held == constant,
                0x35: held >= constant,
                0x45: bool(held & constant),
            }
            at += if_true if tests[code] else if_false


def refused(error: int) -> int:
    return 0x00050000 | error


@MACHINES
@given(number=st.integers(0, 2**32 - 1))
def test_every_call_gets_an_answer(machine: str, number: int) -> None:
    answers = {ALLOW, refused(errno.EPERM), refused(errno.ENOSYS), refused(errno.EAFNOSUPPORT)}
    assert run(machine, number) in answers
    if number > 452:  # newer than the table, or of x32
        assert run(machine, number) == refused(errno.ENOSYS)
    assert run(machine, number, architecture=0x40000003) == KILL


@MACHINES
def test_the_sizes_fit_what_jumps_and_the_kernel_can_do(machine: str) -> None:
    program = list(struct.iter_unpack("=HBBI", seccomp.build(machine)))
    assert len(program) < 4096
    assert program[-1] == (0x06, 0, 0, ALLOW)


@pytest.mark.parametrize(("machine", "socket"), [("x86_64", 41), ("aarch64", 198)])
def test_sockets_are_of_three_families(machine: str, socket: int) -> None:
    allowed = {family for family in range(64) if run(machine, socket, family) == ALLOW}
    assert allowed == {1, 2, 10}
    assert run(machine, socket, 40) == refused(errno.EAFNOSUPPORT)


@pytest.mark.parametrize(("machine", "clone"), [("x86_64", 56), ("aarch64", 220)])
def test_threads_and_forks_but_no_namespaces(machine: str, clone: int) -> None:
    assert run(machine, clone, 0x003D0F00) == ALLOW  # a thread of the C library
    assert run(machine, clone, 0x01200011) == ALLOW  # its fork
    for bit in (17, 25, 26, 27, 28, 29, 30):
        assert run(machine, clone, 1 << bit | 17) == refused(errno.EPERM)
    assert run(machine, 435) == refused(errno.ENOSYS)


@pytest.mark.parametrize(("machine", "ioctl"), [("x86_64", 16), ("aarch64", 29)])
def test_terminals_take_no_input_from_programs(machine: str, ioctl: int) -> None:
    assert run(machine, ioctl, 0, 0x5412) == refused(errno.EPERM)
    assert run(machine, ioctl, 0, 0x541C) == refused(errno.EPERM)
    assert run(machine, ioctl, 0, 0x5401) == ALLOW
    assert run(machine, ioctl, 0, 0xFFFFFFFF_00005412) == refused(errno.EPERM)


@pytest.mark.parametrize(("machine", "prlimit"), [("x86_64", 302), ("aarch64", 261)])
def test_limits_are_ones_own(machine: str, prlimit: int) -> None:
    assert run(machine, prlimit, 0) == ALLOW
    assert run(machine, prlimit, 2) == refused(errno.EPERM)


def test_the_numbers_are_those_of_the_kernels_headers() -> None:
    header = Path(f"/usr/include/{os.uname().machine}-linux-gnu/asm/unistd_64.h")
    if os.uname().machine != "x86_64" or not header.exists():
        pytest.skip("the kernel's headers aren't installed here")
    words = [line.split() for line in header.read_text().splitlines()]
    numbers = {
        w[1].removeprefix("__NR_"): int(w[2]) for w in words if len(w) == 3 and w[2].isdigit()
    }
    for name in seccomp.denied():
        answer = refused(errno.ENOSYS if name == "clone3" else errno.EPERM)
        assert run("x86_64", numbers[name]) == answer, name
    for name in ("read", "write", "openat", "mmap", "execve", "fork", "futex", "kill", "pipe2"):
        assert run("x86_64", numbers[name]) == ALLOW, name


SLOWING = {  # numbers on both machines, and the arguments with the aim as %
    "setpriority": ((141, 140), (0, "%", 19)),
    "ioprio_set": ((251, 30), (1, "%", 0)),
    "sched_setscheduler": ((144, 119), ("%", 5, 0)),
    "sched_setparam": ((142, 118), ("%", 0)),
    "sched_setattr": ((314, 274), ("%", 0, 0)),
    "sched_setaffinity": ((203, 122), ("%", 8, 0)),
}


@MACHINES
@pytest.mark.parametrize("name", SLOWING)
@settings(max_examples=10)
@given(pid=st.integers(0, 2**31 - 1))
@example(pid=1)
def test_the_first_process_is_slowed_by_nobody(machine: str, name: str, pid: int) -> None:
    numbers, words = SLOWING[name]
    number = numbers[list(ARCHITECTURES).index(machine)]
    for high in (0, 0xFFFFFFFF << 32):  # which the kernel doesn't look at
        arguments = [pid | high if word == "%" else int(word) for word in words]
        assert run(machine, number, *arguments) == (refused(errno.EPERM) if pid == 1 else ALLOW)


@pytest.mark.parametrize(
    ("machine", "setpriority", "ioprio_set"), [("x86_64", 141, 251), ("aarch64", 140, 30)]
)
def test_nor_with_its_group_or_user(machine: str, setpriority: int, ioprio_set: int) -> None:
    for number, kinds in ((setpriority, (1, 2)), (ioprio_set, (2, 3))):
        for kind in kinds:
            assert run(machine, number, kind, 12345, 1) == refused(errno.EPERM)


def test_a_machine_without_a_table_is_named() -> None:
    with pytest.raises(ValueError, match="no table of system calls for 'riscv64'"):
        seccomp.build("riscv64")
