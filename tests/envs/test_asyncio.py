"""Environments of asyncio keep the protocol: calls, faults, deadlines, nothing left."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import trio

from headrace.envs import (
    EnvironmentBroken,
    Message,
    Task,
    WorkerProcessError,
    check_env,
    in_asyncio,
)
from tests.fakes import asyncio_envs as fakes

TURN = Message("assistant", "1")
TASK = Task("0")


async def repeat(stream: trio.SocketStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send_all(data)


def test_a_client_of_asyncio_talks_to_a_server_and_passes_the_check():
    async def main():
        make = in_asyncio(fakes.Echo, processes=2)
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, repeat, 0))
            task = Task("0", {"port": listeners[0].socket.getsockname()[1]})
            async with make() as env:
                (first,) = await env.reset(task, 0)
                middle = await env.step(Message("assistant", "again"))
                last = await env.step(Message("assistant", "end"))
            await check_env(make, [task], probes=[Message("assistant", "end")])
            nursery.cancel_scope.cancel()
        assert (first.content, middle.messages[0].content, last.reward) == ("hello", "again", 1.0)
        assert make.statistics().started_total <= 2

    trio.run(main)


def test_the_loop_runs_between_two_calls(tmp_path: Path):
    path = tmp_path / "written"

    async def main():
        async with in_asyncio(fakes.Writes, processes=1)() as env:
            await env.reset(Task("0", {"path": str(path)}), 0)
            with trio.fail_after(20.0):
                while not path.exists():
                    await trio.sleep(0.01)

    trio.run(main)


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (fakes.Raises, WorkerProcessError, "Raises.step raised ValueError: no such answer"),
        (fakes.Breaks, EnvironmentBroken, "no server"),
        (fakes.RaisesOnOpen, WorkerProcessError, "RaisesOnOpen.open raised OSError: no server"),
        (fakes.RaisesOnClose, WorkerProcessError, "RaisesOnClose.close raised OSError: no good"),
        (fakes.Exits, WorkerProcessError, "its process exited with status 3"),
        (fakes.FailsBehind, WorkerProcessError, "FailsBehind.step .*Error: the connection broke"),
        (fakes.FailsBetween, WorkerProcessError, "FailsBetween.step .* the connection broke"),
    ],
)  # fmt: skip
def test_a_fault_is_the_error_of_its_episode(kind, error, text):
    async def episode(make):
        async with make() as env:
            await env.reset(TASK, 0)
            await env.step(TURN)

    async def main():
        make = in_asyncio(kind, processes=1)
        with pytest.raises(error, match=text):
            await episode(make)
        assert make.statistics().busy == 0

    trio.run(main)


def test_a_call_that_will_not_be_cancelled_is_killed_and_the_next_episode_goes_on():
    async def main():
        make = in_asyncio(fakes.Hangs, processes=1)
        async with make() as env:
            (message,) = await env.reset(TASK, 0)
            with trio.move_on_after(0.1) as scope:
                await env.step(TURN)
        assert scope.cancelled_caught
        with pytest.raises(ProcessLookupError):
            os.kill(int(message.content), signal.SIG_DFL)
        async with make() as env:
            await env.reset(TASK, 0)

    trio.run(main)


def test_tasks_that_are_left_are_cancelled_and_the_process_serves_on():
    async def main():
        make = in_asyncio(fakes.LeavesTasks, processes=1)
        pids = []
        for _ in range(2):
            async with make() as env:
                pids += [message.content for message in await env.reset(TASK, 0)]
        assert pids[0] == pids[1]

    trio.run(main)
