"""Synchronous environments in processes: what fails, hangs or crashes costs a process."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from headrace.envs import (
    EnvironmentBroken,
    ProcessStatistics,
    RewardFailed,
    StepResult,
    Task,
    WorkerProcessError,
    check_env,
    in_processes,
)
from headrace.envs.process_output import LINES_PER_EPISODE
from headrace.envs.process_wire import read_answer
from tests.fakes.faulty_env import HUGE_BYTES, Faulty
from tests.fakes.sync_env import GIVE_UP_SECONDS, TURN, until, wait_until

PATIENCE = 3 * GIVE_UP_SECONDS  # starting interpreters on a loaded machine


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Nothing outlives a trio run: no child, no zombie, no descriptor, no thread of ours."""
    before = sorted(Path("/proc/self/fd").iterdir())
    yield
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    assert not [name for name in others if not name.startswith("Trio thread")]


def lives(pid: int) -> bool:
    """Whether a process is there and isn't a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children_of(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def start(env, task: Task, seed: int = 0) -> tuple[int, int]:
    """Reset; return the process and how many environments it has opened."""
    (message,) = await env.reset(task, seed)
    task_id, got_seed, pid, opened = message.content.split()
    assert (task_id, int(got_seed)) == (task.id, seed)
    return int(pid), int(opened)


async def episode(make, faults=None, *, seconds=PATIENCE) -> tuple[int, int]:
    """One episode whose step has a deadline; return what `start` does."""
    async with make() as env:
        where = await start(env, Task("t", faults or {}))
        with trio.fail_after(seconds):
            await env.step(TURN)
    return where


def test_it_keeps_the_protocol_and_passes_seeds_and_plain_numbers_on() -> None:
    make = in_processes(Faulty, processes=1)

    async def main() -> None:
        # The text of a reset names its process, and so is the same as long as that is reused.
        async with make() as env:
            assert await start(env, Task("a"), 7) == await start(env, Task("a"), 7)
            await start(env, Task("\udcff-ä-😀"), -1)  # as tokens may decode
            result = await env.step(TURN)
        assert result == StepResult(reward=1.5, terminated=True, info={"success": 1.0})
        assert type(result.reward) is type(result.info["success"]) is float
        with pytest.raises(RuntimeError, match="Faulty isn't open; use it in an async with"):
            await env.step(TURN)
        await env.__aexit__(None, None, None)

    trio.run(main)


def test_check_env_accepts_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shout_in_processes.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import shout_in_processes  # type: ignore[import-not-found]  # noqa: PLC0415

    trio.run(
        check_env, shout_in_processes.make, [Task("a", {"text": "x"}), Task("b", {"text": "y"})]
    )
    sys.modules.pop("shout_in_processes")


USER_MODULE = """
from headrace.envs import Message, StepResult, in_processes

class Shout:
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def reset(self, task, seed):
        return [Message("user", task.data["text"])]
    def step(self, message):
        return StepResult(reward=float(message.content == "HI"), terminated=True)

make = in_processes(Shout, processes=1)
"""


def test_warm_processes_serve_the_next_episode_until_they_are_recycled() -> None:
    make = in_processes(Faulty, processes=1, recycle_after_episodes=2)

    async def main() -> None:
        seen = [await episode(make) for _ in range(4)]
        assert [opened for _, opened in seen] == [1, 2, 1, 2]
        assert seen[0][0] == seen[1][0] != seen[2][0] == seen[3][0]
        assert make.statistics() == ProcessStatistics(1, busy=0, idle=0, started_total=2)
        assert not lives(seen[0][0])

    run_long(main)


def test_sets_have_the_same_order_in_every_process() -> None:
    make = in_processes(Faulty, processes=3)

    async def main() -> None:
        async with make() as one, make() as two, make() as three:
            said = [await env.reset(Task("a set"), 0) for env in (one, two, three)]
        assert said[0] == said[1] == said[2]

    run_long(main)


def test_a_warm_process_that_dies_is_replaced_and_each_writes_lines(capfd) -> None:
    make = in_processes(Faulty, processes=1, name="Talker")

    async def main() -> None:
        pid, _ = await episode(make, {"step": "write"})
        os.kill(pid, signal.SIGKILL)
        await until(lambda: make.statistics().idle == 0)
        assert not lives(pid)
        assert (await episode(make, {"step": "write"}))[1] == 1

    run_long(main)
    lines = capfd.readouterr().err.splitlines()
    assert lines.count("[Talker] hello from stdout") == 2
    assert lines.count("[Talker] hello from stderr") == 2


def run_long(function) -> None:
    async def main() -> None:
        with trio.fail_after(2 * PATIENCE):
            await function()

    trio.run(main)


DEATHS = {
    "exit_at_once": r"Faulty\.step: its process exited with status 3",
    "crash": r"(?s)its process was ended by SIGSEGV.*it wrote last.*in crash",
}
ERRORS = {
    "exit_in_order": r"Faulty\.step raised SystemExit: in order",
    "use_up_memory": r"Faulty\.step raised MemoryError",
    "fail": r"Faulty\.step raised KeyError: 'lost'",
    "unpicklable": r"Faulty\.step raised TypeError: cannot pickle '_thread.lock' object",
    "foreign": r"step returned what can't be taken: it holds a tests\.fakes\.faulty_env\.Unknown",
    "huge": r"the result of step has 10\d+ bytes, at most 10000 may be sent",
}
HANGS = ("spin", "flood")


def test_each_fault_is_the_error_of_one_episode_and_the_next_has_a_fresh_process(capfd) -> None:
    make = in_processes(Faulty, processes=3, max_result_bytes=10_000)
    pids: dict[str, int] = {}

    async def one(fault: str) -> None:
        async with make() as env:
            pids[fault], opened = await start(env, Task("t", {"step": fault}))
            assert opened == 1, f"{fault} has the process of another"
            with trio.move_on_after(0.5 if fault in HANGS else PATIENCE) as scope:
                await env.step(TURN)
            assert scope.cancelled_caught, fault
            with pytest.raises(RuntimeError, match="after one that was cancelled or ended its"):
                await env.step(TURN)

    async def expect(fault: str) -> None:
        if fault in HANGS:
            await one(fault)
        else:
            with pytest.raises(WorkerProcessError, match={**DEATHS, **ERRORS}[fault]):
                await one(fault)
        assert not lives(pids[fault]), fault

    async def main() -> None:
        faults = [*HANGS, *DEATHS, *ERRORS]
        async with trio.open_nursery() as nursery:
            for fault in faults:
                nursery.start_soon(expect, fault)
        assert len(set(pids.values())) == len(faults) == make.statistics().started_total

    assert HUGE_BYTES > 10_000
    run_long(main)
    flooded = capfd.readouterr().err.splitlines().count("[Faulty] " + "x" * 1000)
    assert flooded == LINES_PER_EPISODE


def test_exceptions_of_every_call_say_which_and_carry_the_traceback() -> None:
    make = in_processes(Faulty, processes=2)
    opening = in_processes(partial(Faulty, "fail"), processes=1, name="Opening")

    async def fails_in(call: str) -> None:
        with pytest.raises(WorkerProcessError, match=rf"Faulty\.{call} raised KeyErr") as error:
            await episode(make, {call: "fail"})
        assert 'raise KeyError("lost")' in error.value.__notes__[0]

    async def fails_to_open() -> None:
        with pytest.raises(WorkerProcessError, match=r"Opening\.open raised KeyError: 'lost'"):
            await episode(opening)

    async def is_broken() -> None:
        with pytest.raises(EnvironmentBroken, match="no licence"):
            await episode(make, {"step": "fail_for_all"})

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for check in (partial(fails_in, "reset"), fails_to_open, is_broken):
                nursery.start_soon(check)
            await fails_in("close")
        assert make.statistics().idle == opening.statistics().idle == 0

    run_long(main)


def test_what_cannot_be_scored_says_so_and_leaves_the_process_to_the_next() -> None:
    make = in_processes(Faulty, processes=1)

    async def main() -> None:
        with pytest.raises(RewardFailed, match="no scorer for it"):
            await episode(make, {"step": "fail_to_score"})
        _, opened = await episode(make)
        assert opened == 2

    run_long(main)


def test_a_close_that_hangs_is_killed_at_its_own_deadline() -> None:
    make = in_processes(Faulty, processes=1, close_deadline_seconds=0.2)

    async def main() -> None:
        with pytest.raises(WorkerProcessError, match=r"Faulty\.close took more than 0\.2 s"):
            await episode(make, {"close": "spin"})
        assert make.statistics() == ProcessStatistics(1, 0, 0, 1)

    run_long(main)


def test_what_an_episode_leaves_behind_ends_with_its_process() -> None:
    make = in_processes(Faulty, processes=1)

    async def main() -> None:
        await episode(make, {"step": "leave_a_thread"})
        assert make.statistics().idle == 0
        async with make() as env:
            pid, _ = await start(env, Task("t", {"step": "leave_a_child"}))
            await env.step(TURN)
            (child,) = children_of(pid)
        assert not lives(pid)
        await until(lambda: not lives(child))

    run_long(main)


@pytest.mark.parametrize("child", ["leave_a_child", "leave_a_session"])
def test_a_cancelled_call_kills_children_too_and_only_its_own_episode(child: str) -> None:
    make = in_processes(Faulty, processes=2)

    async def main() -> None:
        async with make() as other, make() as env:
            mine = await start(other, Task("other"))
            pid, _ = await start(env, Task("t", {"reset": child, "step": "spin"}))
            (started,) = children_of(pid)
            with trio.move_on_after(0.1):
                await env.step(TURN)
            await until(lambda: not lives(pid) and not lives(started))
            assert (await other.step(TURN)).reward == 1.5
            assert lives(mine[0])

    run_long(main)


def test_at_most_so_many_at_once_and_the_others_wait_in_order() -> None:
    make = in_processes(Faulty, processes=1)
    order: list[int] = []

    async def wait(number: int) -> None:
        async with make():
            assert make.statistics().busy == 1
            order.append(number)

    async def main() -> None:
        async with trio.open_nursery() as nursery, make():
            for number in range(5):
                nursery.start_soon(wait, number)
                await trio.testing.wait_all_tasks_blocked(0.01)
            with trio.move_on_after(0.05) as scope:
                await make().__aenter__()  # gives up, and takes no place
            assert scope.cancelled_caught
            assert order == []
        assert order == list(range(5))
        assert make.statistics() == ProcessStatistics(1, 0, 1, 1)

    run_long(main)


def test_law_16_cancelled_anywhere_nothing_is_left() -> None:
    make = in_processes(Faulty, processes=2)

    async def main() -> None:
        for seconds in (0.0, 0.01, 0.2, 0.6):
            with trio.move_on_after(seconds):
                async with make() as env:
                    await start(env, Task("t"))
                    await trio.sleep_forever()
            assert make.statistics().busy == 0

    run_long(main)


def test_an_error_in_the_run_ends_what_is_warm_and_what_works() -> None:
    make = in_processes(Faulty, processes=2)
    pids: list[int] = []

    async def main() -> None:
        pids.append((await episode(make))[0])
        async with make() as env:
            pids.append((await start(env, Task("t", {"step": "spin"})))[0])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(env.step, TURN)
                await trio.sleep(0.05)
                raise ZeroDivisionError

    with pytest.raises(BaseExceptionGroup):
        trio.run(main)
    assert not any(map(lives, pids))
    assert make.statistics().idle == make.statistics().busy == 0


def test_three_starts_that_fail_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "gone_in_processes.py"
    source.write_text("class Gone: ...")
    monkeypatch.syspath_prepend(tmp_path)
    import gone_in_processes  # type: ignore[import-not-found]  # noqa: PLC0415

    make = in_processes(gone_in_processes.Gone, processes=1)
    sys.modules.pop("gone_in_processes")
    source.write_text("raise OSError('no display')")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(WorkerProcessError, match="couldn't be started"):
                await make().__aenter__()
        with pytest.raises(
            EnvironmentBroken,
            match=r"(?s)3 times in a row.*exited with status 1.*OSError: no display.*fresh interp",
        ):
            await make().__aenter__()

    run_long(main)


def test_a_start_that_takes_too_long_is_killed() -> None:
    make = in_processes(Faulty, processes=1, start_deadline_seconds=0.01)

    async def main() -> None:
        with pytest.raises(WorkerProcessError, match=r"started: it took more than 0\.01 s"):
            await make().__aenter__()
        assert make.statistics() == ProcessStatistics(1, 0, 0, 1)

    run_long(main)


KILLED_RUN = """
import sys, trio
from headrace.envs import Message, Task, in_processes
from tests.fakes.faulty_env import Faulty

async def main():
    async with in_processes(Faulty, processes=1)() as env:
        (message,) = await env.reset(Task("t", {"reset": "leave_a_child", "step": "spin"}), 0)
        print(message.content.split()[2], flush=True)
        await env.step(Message("assistant", ""))

trio.run(main)
"""


def test_a_run_that_is_killed_leaves_nothing() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED_RUN)],
        stdout=subprocess.PIPE, text=True, env=environment,
    ) as killed:  # fmt: skip
        assert killed.stdout is not None
        pid = int(killed.stdout.readline())
        pids = [pid, *children_of(pid)]
        assert len(pids) == 2
        killed.kill()
    wait_until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\x80\x05\x8e" + b"\x7f" * 8,  # a text of so many bytes
        b"\x80\x05\x8a\x7f",  # an integer that is cut off
        b"\x80\x05h\x05.",  # a memo that isn't there
        pickle.dumps(os.getpid),
        pickle.dumps(Task("a")),
    ],
)
def test_what_is_no_answer_is_refused_by_one_error(body: bytes) -> None:
    with pytest.raises(pickle.UnpicklingError):
        read_answer(body)


def local() -> Faulty:
    return Faulty()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"processes": 0}, "processes must be >= 1, got 0"),
        ({"recycle_after_episodes": 0}, "recycle_after_episodes must be >= 1, got 0"),
        ({"start_deadline_seconds": float("inf")}, "must be > 0 and finite, got inf"),
        ({"close_deadline_seconds": 0.0}, "must be > 0 and finite, got 0.0"),
        ({"make": lambda: None}, "can't be sent to another process.*top level of a module"),
    ],
)
def test_wrong_arguments(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        in_processes(**{"make": Faulty, **wrong})


def test_what_the_script_itself_defines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "local", local, raising=False)
    with pytest.raises(ValueError, match="of the script that is run, and not importable"):
        in_processes(local)
