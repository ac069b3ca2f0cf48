"""Runs tables of checks in sandboxes, several at once; the tests then look at what came out."""

import functools
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio

from headrace.envs.sandbox import (
    Guarantees,
    Limits,
    Program,
    Result,
    Sandbox,
    SandboxConfig,
    SandboxError,
    SandboxUnavailable,
    bwrap,
    open_sandbox,
)

SMALL = Limits(
    wall_seconds=10.0,
    cpu_seconds=5.0,
    memory_bytes=96 << 20,
    processes=16,
    output_bytes=4096,
    file_bytes=1 << 20,
    disk_bytes=4 << 20,
    open_files=32,
)
_SERVE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from supervisor.main import serve
serve((0, 1), json.loads(sys.argv[2]))
"""


def _server() -> tuple[str, ...]:
    """Return the command of a server that starts faster than `headrace.envs.sandbox.serve`."""
    try:
        settings = json.dumps(bwrap.settings(SandboxConfig(limits=SMALL), "served"))
    except SandboxUnavailable:
        return ("false",)
    return (sys.executable, "-I", "-S", "-c", _SERVE, str(Path(bwrap.__file__).parent), settings)


CONFIGS = {
    "bwrap": SandboxConfig(limits=SMALL, warm=3),
    "remote": SandboxConfig(backend="remote", limits=SMALL, command=_server()),
    "rlimit": SandboxConfig(backend="rlimit", allow_unsafe=True, limits=SMALL),
    "monty": SandboxConfig(backend="monty", limits=SMALL),
}
_AT_ONCE = 3


@dataclass(frozen=True)
class Check:
    """What to run, and what may come of it.

    `statuses` are the ends that count as held; `prints` is what it must have printed then.
    """

    program: Program
    statuses: tuple[str, ...] = ("ok",)
    prints: bytes | None = b"held"
    limits: Mapping[str, float] = field(default_factory=dict)
    causes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a check; `after` is a call that the same sandbox ran next."""

    result: Result
    after: Result
    seconds: float


Outcomes = Mapping[str, Outcome]


async def _run_check(box: Sandbox, check: Check) -> Outcome:
    began = time.monotonic()
    result = await box.exec(check.program, limits=replace(SMALL, **dict(check.limits)))
    seconds = time.monotonic() - began
    after = await box.exec("print('alive')")
    return Outcome(result, after, seconds)


async def _run_all(config: SandboxConfig, checks: Mapping[str, Check]) -> Outcomes:
    outcomes: dict[str, Outcome] = {}
    room = trio.CapacityLimiter(_AT_ONCE)

    async def run(name: str) -> None:
        async with room, open_sandbox(config) as box:
            outcomes[name] = await _run_check(box, checks[name])

    async with trio.open_nursery() as nursery:
        for name in checks:
            nursery.start_soon(run, name)
    return outcomes


def run_checks(backend: str, checks: Mapping[str, Check]) -> Outcomes:
    """Run all checks, each in a sandbox of its own; skip where the backend can't work."""
    return trio.run(_run_all, require(backend), checks)


def require(backend: str) -> SandboxConfig:
    """Return a backend's configuration; skip the test where it can't work. Not inside trio."""
    problem = _problem(backend)
    if problem:
        pytest.skip(problem)
    return CONFIGS[backend]


def guarantees(backend: str) -> Guarantees:
    """Return what a backend enforces here."""

    async def ask() -> Guarantees:
        async with open_sandbox(CONFIGS[backend]) as box:
            return box.guarantees

    return trio.run(ask)


@functools.cache
def _problem(backend: str) -> str:
    async def try_it() -> None:
        async with open_sandbox(CONFIGS[backend]):
            pass

    try:
        trio.run(try_it)
    except SandboxError as problem:
        return str(problem)
    return ""
