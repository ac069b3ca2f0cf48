"""Nothing outlives a call, a sandbox, a run, or a killed process."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from headrace.envs.sandbox import AuditLog, Sandbox, SandboxConfig, audit_to, open_sandbox
from headrace.envs.sandbox.supervisor import cgroups, leftovers
from headrace.envs.sandbox.supervisor.runner import descendants
from tests.envs.sandbox.harness import require
from tests.envs.sandbox.leaks import groups, used_now, wait_for

pytestmark = pytest.mark.slow

RUN = f"lifetime-{os.getpid()}"  # in the names of all that it makes
_DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
while True: pass
"""


@pytest.fixture(params=["bwrap", pytest.param("rlimit", marks=pytest.mark.slow)])
def config(request: pytest.FixtureRequest) -> SandboxConfig:
    return require(request.param)


@pytest.fixture(autouse=True)
def log(tmp_path: Path) -> Iterator[AuditLog]:
    """A log whose run gives its name to what is made."""
    with AuditLog(tmp_path / "log", RUN) as log, audit_to(log):
        log.record({})  # opens the file, whose descriptor is no leak
        yield log


def supervisor_of_this_process() -> int:
    (supervisor,) = [
        pid
        for pid in descendants(os.getpid())
        if b"supervisor.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return supervisor


def test_cancelling_leaves_no_process(config: SandboxConfig) -> None:
    async def main() -> None:
        async with open_sandbox(config) as box:
            await box.exec("pass")
            await trio.sleep(0.5)  # until those ahead of need have started
            before = len(descendants(os.getpid()))
            for _ in range(3):
                with trio.move_on_after(0.15):
                    await box.exec(_DAEMON)
                assert len(descendants(os.getpid())) <= before

    trio.run(main)


def test_closing_in_the_middle_of_a_call_ends_it(config: SandboxConfig) -> None:
    async def main() -> None:
        results = []

        async def call(box: Sandbox) -> None:
            results.append(await box.exec(_DAEMON))

        async with trio.open_nursery() as nursery, open_sandbox(config) as box:
            nursery.start_soon(call, box)
            await trio.sleep(0.2)
            await box.close()
        assert results[0].status == "killed"

    before = used_now(RUN)
    trio.run(main)
    assert used_now(RUN) == before


def test_a_killed_supervisor_takes_its_sandboxes_along(config: SandboxConfig) -> None:
    async def main() -> None:
        results = []

        async def call(box: Sandbox) -> None:
            results.append(await box.exec(_DAEMON))

        async with open_sandbox(config) as box:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, box)
                await trio.sleep(0.3)
                inside = descendants(supervisor_of_this_process())
                assert inside
                os.kill(supervisor_of_this_process(), signal.SIGKILL)
            assert results[0].status == "infrastructure"
            assert (await box.exec("print(1)")).status == "infrastructure"
        assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
        async with open_sandbox(config) as box:  # a new supervisor, which reaps the old one's
            assert (await box.exec("print(1)")).stdout == b"1\n"

    before = used_now(RUN)
    trio.run(main)
    assert wait_for(lambda: used_now(RUN) == before), (before, used_now(RUN))


_VICTIM = """
import sys, trio
from pathlib import Path
from headrace.envs.sandbox import AuditLog, SandboxConfig, open_sandbox
async def main():
    config = SandboxConfig(backend=sys.argv[1], allow_unsafe=True)
    log = AuditLog(Path(sys.argv[3]), sys.argv[4])
    async with open_sandbox(config, audit=log) as box, trio.open_nursery() as nursery:
        nursery.start_soon(box.exec, sys.argv[2])
        await trio.sleep(0.3)
        print("running", flush=True)
trio.run(main)
"""


def test_a_killed_run_leaves_nothing(config: SandboxConfig, log: AuditLog) -> None:
    before = used_now(RUN)
    command = [sys.executable, "-c", _VICTIM, config.backend, _DAEMON, str(log.path), RUN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "running\n"
        inside = descendants(run.pid)
        assert len(inside) > 2
        run.kill()
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
    assert wait_for(lambda: used_now(RUN) == before), (before, used_now(RUN))


def test_leftovers_of_the_dead_are_reaped_and_the_living_are_spared(tmp_path: Path) -> None:
    layout = cgroups.find()
    dead, lock = leftovers.claim(tmp_path, "dead")
    cgroups.Group(layout, f"{dead.name}-1")
    sleeper = subprocess.Popen(["sleep", "600"])
    for folder in groups():
        if folder.name == f"{dead.name}-1":
            (folder / "cgroup.procs").write_text(str(sleeper.pid))
    (dead / "box-1").mkdir()
    os.close(lock)  # as the kernel does when the owner is killed
    living, held = leftovers.claim(tmp_path, "living")
    assert leftovers.reap(tmp_path, layout) == 1
    assert not dead.exists()
    assert living.exists()
    assert not [folder for folder in groups() if folder.name.startswith(dead.name)]
    if layout.pids is None:
        sleeper.kill()
    assert sleeper.wait() == -signal.SIGKILL
    os.close(held)


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = leftovers.state_root()
    root.chmod(0o777)
    with pytest.raises(leftovers.StateFolderError, match="only this user"):
        leftovers.state_root()
    root.rmdir()
    root.symlink_to("/")
    with pytest.raises(leftovers.StateFolderError, match="only this user"):
        leftovers.state_root()
