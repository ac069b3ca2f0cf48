"""How a program ended is decided by what is known, and by nothing that it says."""

import signal
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.sandbox.supervisor.judging import Evidence, judge

NOTHING = Evidence(
    stopped="",
    group_ran_out=False,
    machine_ran_out=False,
    died="",
    can_die_from_inside=False,
    memory_bytes=None,
    cpu_seconds=5,
)


def report(code: int, **fields: Any) -> dict[str, Any]:
    return {"exit": code, "why": "", "peak_bytes": 0, "own_cpu_seconds": 0.0, **fields}


@given(code=st.integers(-64, 255))
def test_without_evidence_an_end_is_the_programs_own(code: int) -> None:
    status, cause = judge(report(code), NOTHING)
    assert status == ("error" if code else "ok")
    assert cause == (f"signal {-code}" if code < 0 else f"exit {code}")


@given(code=st.integers(-64, 255), stopped=st.sampled_from(["wall", "output", "memory"]))
def test_what_was_stopped_ended_so_whatever_it_says(code: int, stopped: str) -> None:
    status, _ = judge(report(code), replace(NOTHING, stopped=stopped))
    assert status == {"wall": "timeout", "output": "output_limit", "memory": "oom"}[stopped]


@given(code=st.integers(-64, 255))
def test_memory_is_what_the_kernel_counts(code: int) -> None:
    assert judge(report(code), replace(NOTHING, group_ran_out=True)) == ("oom", "memory limit")
    polled = replace(NOTHING, memory_bytes=1000)
    assert (judge(report(code, peak_bytes=1001), polled)[0] == "oom") is (code != 0)
    assert judge(report(code, peak_bytes=1000), polled)[0] != "oom"


@pytest.mark.parametrize("number", [signal.SIGXCPU, signal.SIGKILL])
def test_time_is_what_was_used(number: signal.Signals) -> None:
    late = report(-number, own_cpu_seconds=4.9)  # the kernel counts by ticks
    assert judge(late, NOTHING) == ("timeout", "cpu limit")
    assert judge(report(-number, own_cpu_seconds=0.1), NOTHING) == ("error", f"signal {number}")
    assert judge(report(1, own_cpu_seconds=9.0), NOTHING) == ("error", "exit 1")


def test_a_machine_without_memory_is_no_result() -> None:
    short = replace(NOTHING, machine_ran_out=True)
    assert judge(report(-signal.SIGKILL), short)[0] == "infrastructure"
    assert judge(report(-signal.SIGSEGV), short)[0] == "error"
    assert judge(report(0), short)[0] == "ok"
    assert judge(report(-signal.SIGKILL), replace(short, group_ran_out=True))[0] == "oom"


def test_a_sandbox_that_died_was_killed_from_outside_unless_it_has_no_walls() -> None:
    assert judge({}, replace(NOTHING, died="it ended with -9")) == (
        "infrastructure",
        "the sandbox was killed from outside: it ended with -9",
    )
    assert judge({}, replace(NOTHING, can_die_from_inside=True))[0] == "killed"
    assert judge({}, replace(NOTHING, group_ran_out=True))[0] == "oom"
    assert judge({}, replace(NOTHING, stopped="cancelled")) == ("killed", "cancelled")


def test_files_and_disk() -> None:
    assert judge({"problem": "no space"}, NOTHING) == ("error", "it could not be started")
    assert judge(report(-9, why="disk"), NOTHING) == ("killed", "disk limit")
