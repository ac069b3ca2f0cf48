"""Limits hold, and nothing stays behind: each check in a sandbox that must work afterwards."""

from dataclasses import replace

import pytest
import trio

from headrace.envs.sandbox import open_sandbox
from tests.envs.sandbox.exhaustions import ALL
from tests.envs.sandbox.harness import (
    SMALL,
    Check,
    Outcome,
    Outcomes,
    guarantees,
    require,
    run_checks,
)

_RUNNER_BYTES = 32 << 20  # where memory is polled, it is the whole sandbox's
_SAFE = ("violence-segfault", "violence-exit_code", "memory-slowly")


def _without_walls(name: str) -> bool:
    """Whether a check can be run without harm to the machine that runs the tests."""
    is_safe_table = name.split("-")[0] in ("time", "left_behind")
    return is_safe_table or name in _SAFE


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return run_checks("bwrap", ALL)


@pytest.fixture(scope="module")
def outcomes_behind_a_server() -> Outcomes:
    return run_checks("remote", ALL)


@pytest.fixture(scope="module")
def outcomes_without_walls() -> Outcomes:
    return run_checks("rlimit", {name: ALL[name] for name in ALL if _without_walls(name)})


@pytest.mark.parametrize("name", ALL)
def test_the_limits_hold(name: str, outcomes: Outcomes) -> None:
    assert_held(ALL[name], outcomes[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_limits_of_a_server_hold(name: str, outcomes_behind_a_server: Outcomes) -> None:
    assert_held(ALL[name], outcomes_behind_a_server[name])


@pytest.mark.parametrize("name", [name for name in ALL if _without_walls(name)])
def test_the_limits_hold_without_walls(name: str, outcomes_without_walls: Outcomes) -> None:
    assert_held(ALL[name], outcomes_without_walls[name])


def assert_held(check: Check, outcome: Outcome) -> None:
    result = outcome.result
    assert result.status in check.statuses, result
    assert not check.causes or result.cause in check.causes, result
    assert (result.exit_code is None) == (result.status not in ("ok", "error"))
    if result.status == "ok" and check.prints is not None:
        assert result.stdout.strip() == check.prints, result
    if result.status == "timeout":
        limits = replace(SMALL, **dict(check.limits))
        assert result.usage.wall_seconds < limits.wall_seconds + 5, result
        assert result.usage.peak_memory_bytes <= limits.memory_bytes + _RUNNER_BYTES, result
    assert len(result.stdout) <= SMALL.output_bytes
    assert len(result.stderr) <= SMALL.output_bytes
    assert result.truncated is (result.status == "output_limit")
    assert outcome.after.stdout == b"alive\n", outcome.after


def test_where_memory_is_counted_the_kernel_says_that_it_ran_out(outcomes: Outcomes) -> None:
    if guarantees("bwrap").memory != "cgroup":
        pytest.skip("no control group here, so a refused allocation is the program's own error")
    for name in ("memory-one_process", "memory-shared_pages"):
        assert outcomes[name].result.cause == "memory limit"


def test_files_of_earlier_calls_count_as_memory() -> None:
    config = require("bwrap")
    if guarantees("bwrap").memory != "cgroup":
        pytest.skip("no control group here, so memory is that of processes")
    large = replace(SMALL, disk_bytes=128 << 20, file_bytes=128 << 20, memory_bytes=256 << 20)
    small = replace(large, memory_bytes=16 << 20)

    async def main() -> None:
        async with open_sandbox(replace(config, limits=large, warm=0)) as box:
            made = await box.exec("with open('x', 'wb') as file: file.write(bytes(10**8))")
            assert made.status == "ok", made
            result = await box.exec("print('never')", limits=small)
            assert (result.status, result.cause) == ("oom", "memory limit"), result
            assert (await box.exec("print('alive')")).stdout == b"alive\n"

    trio.run(main)


def test_what_is_left_behind_is_counted(outcomes: Outcomes) -> None:
    assert outcomes["left_behind-daemon"].result.usage.processes_killed == 1
    assert outcomes["left_behind-many_daemons"].result.usage.processes_killed == 8


def test_no_program_destroys_its_sandbox(outcomes: Outcomes) -> None:
    assert not [name for name in ALL if outcomes[name].result.workspace_lost]
