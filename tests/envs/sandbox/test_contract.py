"""What every backend does alike: the contract of `Sandbox`, one suite for all."""

import errno
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from headrace.envs.sandbox import (
    AuditLog,
    Limits,
    Result,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxFileError,
    open_sandbox,
)
from tests.envs.sandbox.harness import SMALL, guarantees, require

BACKENDS = ["bwrap", "rlimit", "remote", "monty"]
_RLIMIT = pytest.param("rlimit", marks=pytest.mark.slow)
ANY = ["bwrap", "remote", "monty", _RLIMIT]
WITH_FILES = ["bwrap", "remote", _RLIMIT]
SHORT = replace(SMALL, wall_seconds=0.3)


@pytest.fixture(params=ANY)
def any_config(request: pytest.FixtureRequest) -> SandboxConfig:
    return require(request.param)


@pytest.fixture(params=WITH_FILES)
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    return require(request.param)


def test_a_call_says_how_it_ended(any_config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(any_config) as box:
            good = await box.exec("print('one')\nprint('two')")
            bad = await box.exec("print('before')\nraise ValueError('as planned')")
            late = await box.exec("while True: pass", limits=SHORT)
            loud = await box.exec("for _ in range(10 ** 4): print('x' * 100)")
            again = await box.exec("print('still here')")
            past = await box.exec("print(1)", deadline=trio.current_time() - 1)
        assert (good.status, good.exit_code, good.stdout) == ("ok", 0, b"one\ntwo\n")
        assert (bad.status, bad.exit_code, bad.stdout) == ("error", 1, b"before\n")
        assert b"ValueError: as planned" in bad.stderr
        assert (late.status, late.exit_code) == ("timeout", None)
        assert (loud.status, loud.truncated) == ("output_limit", True)
        assert again.stdout == b"still here\n"
        assert past.status == "timeout"
        ids = {result.exec_id for result in (good, bad, late, loud, again, past)}
        assert len(ids) == 6

    trio.run(main)


class FullLog(AuditLog):
    """A log with room for the beginnings of calls alone."""

    def record(self, fields: Mapping[str, Any]) -> None:
        if "status" in fields:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_and_a_cancellation_are_both_told(
    any_config: SandboxConfig, tmp_path: Path
) -> None:
    async def main() -> None:
        async with open_sandbox(any_config, audit=FullLog(tmp_path / "log", "run")) as box:
            with pytest.raises(ExceptionGroup) as caught, trio.move_on_after(0.2) as scope:
                await box.exec("while True: pass")
            assert scope.cancelled_caught
            (problem,) = caught.value.exceptions
            assert isinstance(problem, OSError)
            with pytest.raises(OSError, match="No space left"):
                await box.exec("pass")

    trio.run(main)


def test_a_cancelled_call_is_over_and_its_sandbox_is_not(any_config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(any_config) as box:
            with trio.move_on_after(0.2) as scope:
                await box.exec("while True: pass")
            assert scope.cancelled_caught
            result = await box.exec("print('next')", deadline=trio.current_time() + 20)
            assert (result.status, result.stdout) == ("ok", b"next\n")

    trio.run(main)


def test_calls_of_one_sandbox_wait_for_each_other_and_others_do_not(
    any_config: SandboxConfig,
) -> None:
    async def main() -> None:
        results = []

        async def call(box: Sandbox, number: int) -> None:
            results.append((await box.exec(f"print({number})")).stdout)

        async with (
            open_sandbox(any_config) as one,
            open_sandbox(any_config) as other,
            trio.open_nursery() as nursery,
        ):
            for number in range(3):
                nursery.start_soon(call, one, number)
                nursery.start_soon(call, other, number)
        assert sorted(results) == sorted(2 * [b"0\n", b"1\n", b"2\n"])

    trio.run(main)


def test_a_closed_sandbox_refuses(any_config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(any_config) as box:
            await box.close()
            await box.close()
            with pytest.raises(SandboxError, match="closed"):
                await box.exec("print(1)")

    trio.run(main)


def test_commands_stdin_and_files(config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(config) as box:
            code = "import sys, helper\nprint(helper.VALUE + sys.stdin.read())"
            files = {"helper.py": b"VALUE = 'help '", "deep/er/file": b"\0\xff"}
            with_code = await box.exec(code, stdin=b"and input", files=files)
            command = ["python3", "-c", "print(open('deep/er/file', 'rb').read())"]
            with_command = await box.exec(command)
            missing = await box.exec(["no-such-command"])
            await box.write("of/mine", b"x" * 100_000)
            size = await box.exec("import os; print(os.path.getsize('of/mine'))")
            await box.exec("open('answer', 'wb').write(bytes(range(256)))")
            answer = await box.read("answer")
        assert with_code.stdout == b"help and input\n", with_code
        assert with_command.stdout == b"b'\\x00\\xff'\n", with_command
        assert (missing.status, missing.exit_code) == ("error", 127)
        assert size.stdout == b"100000\n"
        assert answer == bytes(range(256))

    trio.run(main)


PATHS = ["../up", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\0b"]


def test_paths_stay_inside(config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(config) as box:
            for path in PATHS:
                with pytest.raises(ValueError, match="path must be relative"):
                    await box.exec("pass", files={path: b""})
                with pytest.raises(ValueError, match="path must be relative"):
                    await box.read(path)
                with pytest.raises(ValueError, match="path must be relative"):
                    await box.write(path, b"")

    trio.run(main)


TRAPS = {
    "link": "os.symlink('/proc/self/environ', 'trap')",
    "link_to_a_file_inside": "open('plain', 'w').close(); os.symlink('plain', 'trap')",
    "hard_link": "open('plain', 'w').close(); os.link('plain', 'trap')",
    "pipe": "os.mkfifo('trap')",
    "folder": "os.mkdir('trap')",
    "socket": "import socket; socket.socket(socket.AF_UNIX).bind('trap')",
    "nothing": "pass",
    "too_large": "open('trap', 'wb').write(b'x' * 2000)",
}


def test_only_plain_files_are_read(config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(config) as box:
            for name, code in TRAPS.items():
                inside = f"import os; os.mkdir({name!r}); os.chdir({name!r}); {code}"
                made = await box.exec(inside)
                assert made.status == "ok", made
                with trio.fail_after(20), pytest.raises(SandboxFileError, match="trap"):
                    await box.read(f"{name}/trap", max_bytes=1000)
                assert (await box.exec("print('alive')")).stdout == b"alive\n"

    trio.run(main)


def test_no_link_leads_out_of_the_folder(config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(config) as box:
            await box.exec("import os; os.symlink('/', 'root'); os.symlink('/dev/null', 'null')")
            for path in ("root/proc/version", "null"):
                with pytest.raises(SandboxFileError, match="can't read"):
                    await box.read(path)
                with pytest.raises(SandboxFileError, match="can't write"):
                    await box.write(path, b"x")
                result = await box.exec("print('never')", files={path: b"x"})
                assert (result.status, result.stdout) == ("error", b"")

    trio.run(main)


def test_limits_must_make_sense() -> None:
    for wrong in (
        {"wall_seconds": 0},
        {"processes": 0},
        {"memory_bytes": 1},
        {"cpu_seconds": 1e999},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            Limits(**wrong)


def test_a_program_is_code_or_words() -> None:
    config = require("bwrap")

    async def main() -> None:
        async with open_sandbox(config) as box:
            for wrong in ([], [1], ["a\0b"]):
                with pytest.raises(ValueError, match="program"):
                    await box.exec(wrong)

    trio.run(main)


def test_monty_refuses_what_it_has_not() -> None:
    config = require("monty")

    async def main() -> None:
        async with open_sandbox(config) as box:
            for given in ({"stdin": b"x"}, {"files": {"a": b""}}):
                with pytest.raises(ValueError, match="Python code alone"):
                    await box.exec("print(1)", **given)
            with pytest.raises(ValueError, match="Python code alone"):
                await box.exec(["ls"])
            with pytest.raises(SandboxFileError):
                await box.read("a")

    trio.run(main)


MONTY_ESCAPES = [
    "import os; print(os.environ)",
    "import os; print(os.system('id'))",
    "print(open('/etc/passwd').read())",
    "import socket; print(socket.socket())",
    "import subprocess; print(subprocess.run('id'))",
    "import ctypes; print(ctypes)",
    "print(().__class__.__base__.__subclasses__())",
    "print(eval('__import__')('os').getpid())",
    "import sys; print(sys.modules['os'])",
]


def run_in_monty(programs: Iterable[str]) -> dict[str, Result]:
    config = require("monty")

    async def main() -> dict[str, Result]:
        async with open_sandbox(config) as box:
            return {code: await box.exec(code, limits=SHORT) for code in programs}

    return trio.run(main)


def test_monty_knows_no_machine() -> None:
    results = run_in_monty(MONTY_ESCAPES)
    assert {code: r.status for code, r in results.items()} == dict.fromkeys(results, "error")
    assert not [code for code, result in results.items() if result.stdout]


MONTY_EATERS = {
    "x = 'a' * 10**9": ("oom",),
    "x = [0]\nwhile True: x = x + x": ("oom", "timeout"),
    "def f(): return f()\nf()": ("error",),
    "x = 2 ** (10 ** 10)": ("oom",),
    "while True: pass": ("timeout",),
    "import time\nwhile True: time.sleep(1)": ("timeout", "error"),
}


def test_monty_keeps_its_limits() -> None:
    results = run_in_monty(MONTY_EATERS)
    assert not {code: r for code, r in results.items() if r.status not in MONTY_EATERS[code]}


def test_an_unsafe_backend_needs_a_word() -> None:
    with pytest.raises(ValueError, match=r"no security boundary.*allow_unsafe=True"):
        SandboxConfig(backend="rlimit")
    with pytest.raises(ValueError, match="backend must be one of"):
        SandboxConfig(backend="docker")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="belong together"):
        SandboxConfig(backend="remote")


def test_what_is_guaranteed_is_said() -> None:
    held = {}
    for name in BACKENDS:
        require(name)
        held[name] = guarantees(name).is_boundary
    assert held == {"bwrap": True, "rlimit": False, "remote": True, "monty": True}


@pytest.mark.slow
def test_the_server_that_users_start_serves() -> None:
    require("bwrap")
    command = (sys.executable, "-m", "headrace.envs.sandbox.serve", "--warm", "1")

    async def main() -> None:
        async with open_sandbox(SandboxConfig(backend="remote", command=command)) as box:
            assert (await box.exec("print(6 * 7)")).stdout == b"42\n"

    trio.run(main)
