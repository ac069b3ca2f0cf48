"""What a person or a supervisor does to a run from outside."""

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import trio
import trio.testing

from headrace.pipeline.supervise import (
    FORCED_EXIT_CODE,
    ForcedEnd,
    describe_on_signal,
    guard_loop,
    stop_on_signal,
)


def test_sigusr1_tells_who_waits_each_time():
    told = []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(describe_on_signal, lambda now: ["learner: a batch"], told.append)
            for _ in range(2):
                await trio.testing.wait_all_tasks_blocked()
                signal.raise_signal(signal.SIGUSR1)
                await trio.sleep(0.02)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert told == ["SIGUSR1: who waits for what since when:\n  learner: a batch"] * 2


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", STOPPING)
def test_a_first_signal_stops_in_order(number):
    stopped = []

    async def main():
        with trio.CancelScope() as scope:

            def stop(which):
                stopped.append(which)
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop_on_signal, stop, partial(stopped.append, "given back"))
                await trio.testing.wait_all_tasks_blocked()
                signal.raise_signal(number)
                await trio.sleep_forever()

    before = {each: signal.getsignal(each) for each in STOPPING}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    try:
        trio.run(main)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert stopped == [number, "given back"]


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_that_is_sent_twice_at_once_is_one(number):
    """Trio raises what its receiver leaves again, with the handler of before, which may kill."""
    said, raised_again = [], []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, said.append, partial(said.append, "given back"))
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                signal.raise_signal(number)
                await trio.sleep(0.02)

    before = {each: signal.getsignal(each) for each in STOPPING}
    for each in STOPPING:
        signal.signal(each, lambda *_: raised_again.append(number))
    try:
        trio.run(main)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert said == [number, "given back"]
    assert raised_again == []


def test_a_run_under_nohup_goes_on_when_its_terminal_is_closed():
    stopped = []

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, stopped.append, stopped.clear)
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGHUP)
            await trio.sleep(0.02)
            nursery.cancel_scope.cancel()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stopped == []


STUCK = """
    import trio
    from headrace.pipeline.supervise import ForcedEnd

    async def refuse():
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    async def main():
        forced = ForcedEnd(
            lambda now: [DESCRIBED],
            lambda: print("last words", flush=True),
            after_seconds=0.2,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forced.arm_when_cancelled)
            nursery.start_soon(refuse)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
"""


def end_by_force(described):
    process = subprocess.run(
        [
            sys.executable, "-c",
            "import trio.testing\n" + textwrap.dedent(STUCK).replace("DESCRIBED", described),
        ],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.returncode == FORCED_EXIT_CODE, process.stderr
    return process


def test_a_forced_end_writes_what_is_known_though_who_waits_cannot_be_told():
    assert end_by_force("1 / 0").stdout == "last words\n"


def test_a_run_that_cannot_end_in_order_is_ended_by_force_and_says_why():
    process = end_by_force("'episode 3.1: environment step'")
    assert "can't end in order" in process.stderr
    assert "episode 3.1: environment step" in process.stderr
    assert process.stdout == "last words\n"


LEFT_OVER = """
    import threading, time
    from headrace.pipeline.supervise import end_without_threads

    threading.Thread(target=time.sleep, args=(60,), name="pool worker").start()
    end_without_threads(3, after_seconds=0.2)
"""


def test_a_foreign_thread_that_never_ends_does_not_keep_the_process():
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LEFT_OVER)],
        capture_output=True, text=True, timeout=30, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.returncode == 3
    assert "pool worker" in process.stderr


ABANDONED = """
    import sys, threading, time
    import jax.numpy as jnp
    from headrace.pipeline.supervise import end_without_threads

    def update():
        while True:
            jnp.ones((600, 600)) @ jnp.ones((600, 600))

    threading.Thread(target=update, daemon=True).start()
    time.sleep(0.5)
    print("last words")
    end_without_threads(143, after_seconds=20)
    sys.exit(143)
"""


def test_an_update_that_was_given_up_does_not_change_how_the_process_ends():
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ABANDONED)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (143, "last words\n")
    assert not process.stderr


def test_a_run_that_ends_in_order_is_left_alone():
    async def main():
        forced = ForcedEnd(lambda now: [], lambda: None, after_seconds=0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forced.arm_when_cancelled)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        forced.disarm()
        await trio.sleep(0.1)

    trio.run(main)


def test_a_call_that_blocks_the_loop_is_told_on_standard_error(capfd):
    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard_loop, 0.2)
            await trio.testing.wait_all_tasks_blocked()
            deadline = trio.current_time() + 0.6
            while trio.current_time() < deadline:
                pass
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert "the event loop" in capfd.readouterr().err
