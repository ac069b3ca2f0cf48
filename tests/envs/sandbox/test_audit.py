"""The audit log: every call is in it, and no line can be changed unseen."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
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
    Guarantees,
    Limits,
    Program,
    Result,
    SandboxConfig,
    Usage,
    audit_run,
    audit_to,
    open_sandbox,
    verify_log,
)
from headrace.envs.sandbox.audit import FILE_NAME, digest
from headrace.envs.sandbox.audited import AuditedSandbox
from headrace.envs.sandbox.protocol import UNWATCHED, Watch
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


_FORKS = """
import os, pathlib, sys
from headrace.envs.sandbox import AuditLog
with AuditLog(pathlib.Path(sys.argv[1]), "run") as log:
    log.record({})
    pid = os.fork()
    for number in range(30):
        log.record({})
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


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


@pytest.mark.parametrize("size", [10, 1 << 16, 200_000])
def test_records_and_torn_lines_may_be_of_any_length(path: Path, size: int) -> None:
    for number in range(2):  # each resumes
        with AuditLog(path, "run") as log:
            log.record({"exec_id": f"call-{number}", "text": size * "x"})
        with path.open("a") as file:
            file.write('{"sequence": 4, "text": "' + size * "y")
    write(path, 1)
    report = verify_log(path)
    assert (report.calls, report.is_torn) == (3, False)


def test_a_log_of_nothing_but_a_torn_line_begins_anew(path: Path) -> None:
    path.write_text(200_000 * "x")
    write(path, 1)
    assert verify_log(path).calls == 1


@pytest.mark.parametrize("line", ["", "{}", "[]", "x", '{"sequence": [], "hash": ""}'])
def test_a_log_whose_last_line_is_no_record_is_not_gone_on_with(path: Path, line: str) -> None:
    path.write_text(line + "\n")
    with pytest.raises(AuditError, match=r"last line.*move"):
        write(path, 1)
    assert path.read_text() == line + "\n"


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


# Of JAX, where an earlier test has used it; the child here does nothing with it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_forked_process_writes_to_the_same_chain(path: Path) -> None:
    # In a process of its own, where no thread is that a fork leaves out, such as JAX has.
    subprocess.run([sys.executable, "-c", _FORKS, str(path)], check=True, timeout=60)
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
    assert all(record["ended_seconds"] >= record["began_seconds"] for record in records)
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
                        while not (path.exists() and '"exec_id"' in path.read_text()):
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
    assert first["files"]["count"] == second["files"]["count"] == 1
    assert first["files"]["digest"] != second["files"]["digest"]


class Idle:
    """A sandbox in which nothing runs; `ended` of its calls is told as of a real one."""

    guarantees = Guarantees(True, "none", "none", "none", "none", "none", "none", "none")

    async def exec(
        self, program: Program, *, watch: Watch = UNWATCHED, **options: object
    ) -> Result:
        result = Result("ok", exec_id="idle-1")
        watch.began("idle-1")
        watch.ended(result)
        return result

    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        return b""

    async def write(self, path: str, data: bytes) -> None:
        pass

    async def close(self) -> None:
        pass


def records_of(path: Path, *calls: Mapping[str, bytes], times: int = 1) -> list[dict[str, Any]]:
    """Return the lines of calls with these files, in `times` sandboxes with a log each."""
    config = SandboxConfig(warm=1)

    async def main() -> None:
        for _ in range(times):
            with AuditLog(path, "run") as log:
                box = AuditedSandbox(Idle(), log, config=config, episode="e")
                for files in calls:
                    await box.exec("pass", files=files)

    trio.run(main)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_many_files_make_no_longer_line(path: Path) -> None:
    many = {f"{number:060}": b"" for number in range(1500)}
    records = records_of(path, {}, many, dict(reversed(many.items())), times=2)
    verify_log(path)
    none, one, other = [record["files"] for record in records if "status" in record][:3]
    assert none["count"] == 0
    assert one == other == {"count": 1500, "digest": one["digest"]} != none
    assert max(map(len, path.read_bytes().splitlines())) < 2000


def test_each_process_writes_a_configuration_once_and_one_can_see_what_it_was(path: Path) -> None:
    first, *others = records = records_of(path, {}, {})
    assert first["kind"] == "policy"
    assert first["config"] == {**asdict(SandboxConfig(warm=1)), "packages": [], "command": []}
    assert first["policy"] == digest(first["config"])
    assert [record["policy"] for record in others] == 4 * [first["policy"]]
    assert "kind" not in {name for record in others for name in record}
    report = verify_log(path)
    assert (report.calls, report.unended, len(records)) == (2, 0, 5)


def test_a_log_without_a_record_leaves_no_file(path: Path) -> None:
    write(path, 0)
    assert not path.exists()
