"""The audit log: every call is in it, and no line can be changed unseen."""

import json
from pathlib import Path

import pytest
import trio

from headrace.envs.sandbox import (
    AuditError,
    AuditLog,
    Limits,
    audit_run,
    audit_to,
    open_sandbox,
    verify_log,
)
from headrace.envs.sandbox.audit import FILE_NAME
from tests.envs.sandbox.harness import require


def write(path: Path, count: int, run: str = "run-1") -> None:
    with AuditLog(path, run) as log:
        for number in range(count):
            log.record({"exec_id": f"call-{number}", "status": "ok"})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def test_an_untouched_log_is_verified(path: Path) -> None:
    write(path, 3)
    write(path, 2)  # resumed
    report = verify_log(path)
    assert (report.records, report.by_status, report.is_torn) == (5, {"ok": 5}, False)
    assert report.head == json.loads(path.read_text().splitlines()[-1])["hash"]


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [lines[0], lines[1].replace("call-1", "call-9"), *lines[2:]],
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
    write(path, 4)
    assert callable(change)
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(AuditError, match="line"):
        verify_log(path)


def test_a_torn_line_is_told_and_cut_when_the_run_goes_on(path: Path) -> None:
    write(path, 2)
    with path.open("a") as file:
        file.write('{"sequence": 2, "ru')
    assert verify_log(path).is_torn
    write(path, 1)
    assert (verify_log(path).records, verify_log(path).is_torn) == (3, False)


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
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok", "timeout", "killed", "error"]
    assert [record["cause"] for record in records][1:3] == ["wall limit", "cancelled"]
    assert {record["run"] for record in records} == {"runs-my-run"}
    assert {record["episode"] for record in records} == {"task-7/2"}
    assert len({record["policy"] for record in records}) == 1
    assert len({record["program"] for record in records}) == 3
    assert all(record["ended"] >= record["began"] for record in records)
    assert records[1]["limits"]["wall_seconds"] == 0.2
    assert "s3cr3t" not in path.read_text()
    assert verify_log(path).records == 4


def test_what_is_given_beside_the_program_is_recorded_too(path: Path) -> None:
    config = require("bwrap")

    async def main() -> None:
        with AuditLog(path, "run") as log, audit_to(log):
            async with open_sandbox(config) as box:
                for word in (b"1", b"2"):
                    await box.exec(["python3", "x.py"], stdin=word, files={"x.py": word})

    trio.run(main)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["program"] == second["program"]
    assert first["stdin"] != second["stdin"]
    assert first["files"].keys() == second["files"].keys() == {"x.py"}
    assert first["files"] != second["files"]


def test_a_log_without_a_record_leaves_no_file(path: Path) -> None:
    write(path, 0)
    assert not path.exists()
