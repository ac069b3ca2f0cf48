"""What is done to a sandbox from outside is no result of what ran in it."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from headrace.envs.sandbox import Result, Sandbox, SandboxConfig, SandboxError, open_sandbox
from headrace.envs.sandbox.supervisor.runner import descendants
from tests.envs.sandbox.harness import require


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def runners() -> list[int]:
    """The interpreters that wait inside, and what they run."""
    found = descendants(os.getpid())
    return [pid for pid in found if b"MAX_DATAGRAM_BYTES" in command_of(pid)]


def outermost() -> list[int]:
    return [
        pid
        for pid in descendants(os.getpid())
        if command_of(pid).split(b"\0")[0].endswith(b"bwrap")
    ]


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):  # it went with another
            os.kill(pid, signal.SIGKILL)


async def killed_while_it_spins(box: Sandbox, victims: Callable[[], list[int]]) -> Result:
    results = list[Result]()

    async def call() -> None:
        results.append(await box.exec("while True: pass"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.sleep(0.3)
        kill(victims())
    return results[0]


def workers_of_monty() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if b"monty" in command_of(pid)]


@pytest.fixture(params=["bwrap", pytest.param("remote", marks=pytest.mark.slow)])
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    return require(request.param)


@pytest.mark.parametrize("victims", [runners, outermost])
def test_a_sandbox_killed_from_outside_is_a_fault_of_the_machine(
    config: SandboxConfig, victims: Callable[[], list[int]]
) -> None:
    async def main() -> None:
        async with open_sandbox(config) as box:
            result = await killed_while_it_spins(box, victims)
            assert (result.status, result.exit_code) == ("infrastructure", None), result
            assert result.cause.startswith("the sandbox was killed from outside: it ended with")
            assert result.workspace_lost
            assert (await box.exec("print('alive')")).stdout == b"alive\n"

    trio.run(main)


def test_one_killed_between_calls_says_that_its_files_are_gone() -> None:
    config = require("bwrap")

    async def main() -> None:
        async with open_sandbox(config) as box:
            await box.write("file", b"x")
            kill(runners())
            await trio.sleep(0.3)
            result = await box.exec("print(open('file').read())")
            assert (result.status, result.workspace_lost) == ("infrastructure", True), result
            assert (await box.exec("print('alive')")).stdout == b"alive\n"
            kill(runners())
            await trio.sleep(0.3)
            with pytest.raises(SandboxError, match="killed from outside"):
                await box.read("file")

    trio.run(main)


@pytest.mark.slow
def test_without_walls_a_program_can_destroy_its_sandbox() -> None:
    config = require("rlimit")

    async def main() -> None:
        async with open_sandbox(config) as box:
            program = "import os, time; os.kill(os.getppid(), 9); time.sleep(60)"
            result = await box.exec(program)
            assert (result.status, result.workspace_lost) == ("killed", True)
            assert (await box.exec("print('alive')")).stdout == b"alive\n"

    trio.run(main)


def test_a_worker_of_monty_killed_from_outside_is_a_fault_of_the_machine() -> None:
    config = require("monty")

    async def main() -> None:
        async with open_sandbox(config) as box:
            result = await killed_while_it_spins(box, workers_of_monty)
            assert result.status == "infrastructure", result
            assert (await box.exec("print('alive')")).stdout == b"alive\n"

    trio.run(main)


def test_idle_workers_of_monty_killed_from_outside_are_nobodys_fault() -> None:
    config = require("monty")

    async def main() -> None:
        async with open_sandbox(config) as box:
            for _ in range(10):
                kill(workers_of_monty())
                result = await box.exec("print('alive')")
                assert (result.status, result.stdout) == ("ok", b"alive\n"), result

    trio.run(main)
