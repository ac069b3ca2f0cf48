"""After many calls everything is as it was: while the supervisor lives, and after the run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from headrace.envs.sandbox import AuditLog, Sandbox, SandboxConfig, audit_to, open_sandbox
from headrace.envs.sandbox.supervisor.runner import descendants
from tests.envs.sandbox.harness import require
from tests.envs.sandbox.leaks import memory_of, name_of, used_now, wait_for

RUN = f"leaks-{os.getpid()}"  # in the names of all that it makes
_SETTLING_SECONDS = 20.0
PROGRAMS = [
    "print(1)",
    "raise SystemExit(3)",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(99)",
    "import os\nos.mkdir('d'); open('d/file', 'w').write('x' * 10_000)",
    "import os; os.abort()",
    "print('x' * 10**6)",
]
MONTY_PROGRAMS = ["print(1)", "raise ValueError", "x = 2 ** (10 ** 10)", "while True: print('x')"]


class Calls:
    """Makes calls of all kinds, some of which are cancelled, in sandboxes that come and go."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._programs = MONTY_PROGRAMS if config.backend == "monty" else PROGRAMS
        self._made = 0

    async def make(self, until: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._episodes, until)

    async def _episodes(self, until: int) -> None:
        while self._made < until:
            async with open_sandbox(self._config) as box:
                for program in self._programs:
                    await self._call(box, program)
                if self._config.backend != "monty":
                    await box.write("file", b"x")
                    await box.read("file")

    async def _call(self, box: Sandbox, program: str) -> None:
        self._made += 1
        with trio.move_on_after(0.02 if self._made % 7 == 0 else 60.0):
            await box.exec(program)


async def assert_flat(config: SandboxConfig, path: Path, first: int, last: int) -> None:
    with AuditLog(path, RUN) as log, audit_to(log):
        calls = Calls(config)
        await calls.make(first)
        before = await settled()
        await calls.make(last)
        with trio.move_on_after(_SETTLING_SECONDS):
            while used_now(RUN) != before:
                await trio.sleep(0.05)
        assert used_now(RUN) == before


async def settled() -> dict[str, object]:
    """Wait until those that are started ahead of need are there."""
    seen = [used_now(RUN)]
    while seen[-6:] != 6 * [seen[-1]] or len(seen) < 6:
        await trio.sleep(0.1)
        seen.append(used_now(RUN))
    return seen[-1]


def assert_no_leak(config: SandboxConfig, path: Path, first: int, last: int) -> None:
    trio.run(Calls(config).make, 2)  # what is kept for ever, such as a thread
    before = used_now(RUN)
    trio.run(assert_flat, config, path, first, last)
    assert wait_for(lambda: used_now(RUN) == before), (used_now(RUN), before)


@pytest.mark.parametrize("backend", ["bwrap", "monty"])
def test_thirty_calls_leave_everything_as_it_was(tmp_path: Path, backend: str) -> None:
    assert_no_leak(require(backend), tmp_path / "log", 10, 30)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["bwrap", "remote", "rlimit", "monty"])
def test_a_thousand_calls_leave_everything_as_it_was(tmp_path: Path, backend: str) -> None:
    assert_no_leak(require(backend), tmp_path / "log", 100, 1000)


@pytest.mark.slow
def test_a_long_episode_keeps_the_supervisor_small() -> None:
    config = require("bwrap")
    loud = replace(config.limits, output_bytes=1 << 20)

    async def main() -> None:
        async with open_sandbox(config) as box:
            await box.exec("print(1)")
            (supervisor,) = [p for p in descendants(os.getpid()) if name_of(p) == "supervisor"]
            before = memory_of(supervisor)
            for _ in range(40):
                result = await box.exec("print('x' * 10**6)", limits=loud)
                assert len(result.stdout) > 10**6
                await box.write("file", bytes(100_000))
            assert memory_of(supervisor) - before < 20 << 20  # and not 40 outputs

    trio.run(main)
