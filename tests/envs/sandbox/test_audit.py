"""The audit log: every call is in it, and no line can be changed unseen."""

import json
import os
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pytest
import trio

from headrace.envs import Env, Message, StepResult, Task, in_processes, in_threads
from headrace.envs.base import EPISODE
from headrace.envs.sandbox import (
    AuditError,
    AuditLog,
    Limits,
    Usage,
    audit_run,
    audit_to,
    open_sandbox,
    verify_log,
)
from headrace.envs.sandbox.audit import FILE_NAME
from tests.envs.sandbox.harness import CONFIGS, require


def write(path: Path, count: int, run: str = "run-1") -> None:
    with AuditLog(path, run) as log:
        write_to(log, count)


def write_to(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.record({"exec_id": f"call-{number}"})
        log.record({"exec_id": f"call-{number}", "status": "ok"})


def ends(path: Path) -> list[dict[str, Any]]:
    """Return the second lines of calls."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if "status" in record]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def test_an_untouched_log_is_verified(path: Path) -> None:
    write(path, 3)
    write(path, 2)  # resumed
    report = verify_log(path)
    assert (report.calls, report.by_status, report.unended) == (5, {"ok": 5}, 0)
    assert not report.is_torn
    assert report.head == json.loads(path.read_text().splitlines()[-1])["hash"]


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[1].replace("call-0", "call-9"), *lines[2:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], lines[2], lines[1], lines[3]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
        lambda lines: [*lines[:2], "{}", *lines[2:]],
        lambda lines: [*lines[:2], "no json", *lines[2:]],
        lambda lines: [*lines[:2], "[]", *lines[2:]],
        lambda lines: lines[1:],
    ],
)
def test_a_change_is_seen(path: Path, change: object) -> None:
    write(path, 2)
    assert callable(change)
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(AuditError, match="line"):
        verify_log(path)


def test_a_torn_line_is_told_and_cut_when_the_run_goes_on(path: Path) -> None:
    write(path, 2)
    with path.open("a") as file:
        file.write('{"sequence": 4, "ru')
    assert verify_log(path).is_torn
    write(path, 1)
    assert (verify_log(path).calls, verify_log(path).is_torn) == (3, False)


def test_a_call_without_an_end_is_told(path: Path) -> None:
    with AuditLog(path, "run") as log:
        log.record({"exec_id": "call-0"})
    assert verify_log(path).unended == 1
    assert "1 calls (1 without an end, as after a kill), unchanged" in audit_run(path.parent)


def test_many_threads_and_logs_write_one_chain(path: Path) -> None:
    with AuditLog(path, "run") as one, AuditLog(path, "run") as other:
        threads = [threading.Thread(target=write_to, args=(log, 20)) for log in (one, other) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify_log(path).calls == 80


def test_a_forked_process_writes_to_the_same_chain(path: Path) -> None:
    with AuditLog(path, "run") as log:
        write_to(log, 1)
        pid = os.fork()
        if pid == 0:
            write_to(log, 30)
            os._exit(0)
        write_to(log, 30)
        assert os.waitpid(pid, 0)[1] == 0
    assert verify_log(path).calls == 61


def test_the_command_says_what_it_found(path: Path) -> None:
    with pytest.raises(AuditError, match="there is no"):
        audit_run(path.parent)
    write(path, 2)
    text = audit_run(path.parent)
    assert "2 calls (2 ok), unchanged; head " + verify_log(path).head in text


def test_every_call_of_a_run_is_recorded_without_its_content(path: Path) -> None:
    config = require("bwrap")

    async def main() -> None:
        with AuditLog(path, "runs/my run") as log, audit_to(log):
            async with open_sandbox(config, episode="task-7/2") as box:
                await box.exec("print('s3cr3t')")
                await box.exec("while True: pass", limits=Limits(wall_seconds=0.2))
                with trio.move_on_after(0.1):
                    await box.exec("while True: pass")
                await box.exec(["python3", "-c", "raise SystemExit(3)"])

    trio.run(main)
    records = ends(path)
    assert [record["status"] for record in records] == ["ok", "timeout", "killed", "error"]
    assert [record["cause"] for record in records][1:3] == ["wall limit", "cancelled"]
    assert {record["run"] for record in records} == {"runs-my-run"}
    assert {record["episode"] for record in records} == {"task-7/2"}
    assert len({record["policy"] for record in records}) == 1
    assert len({record["program"] for record in records}) == 3
    assert len({record["exec_id"] for record in records}) == 4
    assert all(record["ended"] >= record["began"] for record in records)
    assert records[1]["limits"]["wall_seconds"] == 0.2
    assert "s3cr3t" not in path.read_text()
    report = verify_log(path)
    assert (report.calls, report.unended) == (4, 0)


@pytest.mark.parametrize("backend", ["bwrap", "monty"])
def test_a_cancelled_call_is_recorded_with_what_it_used(path: Path, backend: str) -> None:
    config = require(backend)

    async def main() -> None:
        with AuditLog(path, "run") as log, audit_to(log):
            async with open_sandbox(config) as box:
                with trio.move_on_after(0.3) as scope:
                    await box.exec("while True: pass")
                assert scope.cancelled_caught

    trio.run(main)
    (end,) = ends(path)
    assert (end["status"], end["cause"], end["exit_code"]) == ("killed", "cancelled", None)
    assert end["exec_id"].endswith("-1")
    assert end["usage"].keys() == asdict(Usage()).keys()
    assert end["usage"]["wall_seconds"] > 0.2
    assert end["usage"]["cpu_seconds"] > 0
    assert end["usage"]["processes_killed"] == 1
    if backend == "monty":
        assert end["usage"]["peak_memory_bytes"] > 0


def test_a_call_that_never_begins_is_not_recorded(path: Path) -> None:
    config = require("monty")

    async def main() -> None:
        with AuditLog(path, "run") as log, audit_to(log):
            async with open_sandbox(config) as box:
                past = await box.exec("print(1)", deadline=trio.current_time() - 1)
                assert past.status == "timeout"
                with pytest.raises(ValueError, match="Python code alone"):
                    await box.exec(["ls"])

    trio.run(main)
    assert not path.exists()


class SandboxedEnv:
    """A synchronous environment that opens a sandbox of its own in each step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *of_exception: object) -> None:
        pass

    def reset(self, task: Task, seed: int) -> list[Message]:
        return [Message("user", "code?")]

    def step(self, message: Message) -> StepResult:
        async def run() -> str:
            async with open_sandbox(CONFIGS["monty"]) as box:
                return (await box.exec(message.content)).status

        return StepResult((Message("user", trio.run(run)),), terminated=True)


@pytest.mark.parametrize("wrap", [in_processes, in_threads])
def test_sandboxes_of_synchronous_environments_are_recorded(
    path: Path, wrap: Callable[[type[SandboxedEnv]], Callable[[], Env]]
) -> None:
    require("monty")
    make = wrap(SandboxedEnv)

    async def main() -> None:
        with AuditLog(path, "run-7") as log, audit_to(log):
            for name in ("1.0", "1.0 try 2"):
                EPISODE.set(name)
                async with make() as env:
                    await env.reset(Task("t"), 0)
                    result = await env.step(Message("assistant", "print(1)"))
                    assert result.messages[0].content == "ok"
            log.record({"status": "ok"})  # the run's own process goes on with the chain

    trio.run(main)
    records = ends(path)[:-1]
    assert [(record["run"], record["episode"]) for record in records] == [
        ("run-7", "1.0"),
        ("run-7", "1.0 try 2"),
    ]
    verify_log(path)


def test_a_killed_worker_leaves_the_line_of_its_call(path: Path) -> None:
    require("monty")
    make = in_processes(SandboxedEnv)

    async def main() -> None:
        with AuditLog(path, "run") as log, audit_to(log):
            with trio.fail_after(60):
                async with make() as env:
                    await env.reset(Task("t"), 0)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(env.step, Message("assistant", "while True: pass"))
                        while not path.exists():
                            await trio.sleep(0.01)
                        nursery.cancel_scope.cancel()

    trio.run(main)
    assert (verify_log(path).calls, verify_log(path).unended) == (1, 1)


def test_what_is_given_beside_the_program_is_recorded_too(path: Path) -> None:
    config = require("bwrap")

    async def main() -> None:
        with AuditLog(path, "run") as log, audit_to(log):
            async with open_sandbox(config) as box:
                for word in (b"1", b"2"):
                    await box.exec(["python3", "x.py"], stdin=word, files={"x.py": word})

    trio.run(main)
    first, second = ends(path)
    assert first["program"] == second["program"]
    assert first["stdin"] != second["stdin"]
    assert first["files"].keys() == second["files"].keys() == {"x.py"}
    assert first["files"] != second["files"]


def test_a_log_without_a_record_leaves_no_file(path: Path) -> None:
    write(path, 0)
    assert not path.exists()
