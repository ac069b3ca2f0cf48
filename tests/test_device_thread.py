"""The device thread: order, errors, cancellation, and nothing left behind."""

import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import trio

from headrace.pipeline.device_thread import DeviceThread


def run_with(device: DeviceThread, body: Callable[[], Awaitable[None]]) -> None:
    """Run `body` while the thread serves; both end together."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            await body()
            nursery.cancel_scope.cancel()

    trio.run(main)


def raise_error() -> None:
    raise KeyError("planned")


def test_run_returns_results_and_raises_errors_of_the_function() -> None:
    device = DeviceThread("device")
    names = []

    async def body() -> None:
        assert await device.run(lambda: 6 * 7) == 42
        with pytest.raises(KeyError, match="planned"):
            await device.run(raise_error)
        names.append(await device.run(lambda: threading.current_thread().name))
        assert await device.run(lambda: "still there") == "still there"

    run_with(device, body)
    assert names == ["device"]


def test_commands_run_in_order_those_before_the_start_included() -> None:
    device = DeviceThread("device")
    seen: list[int] = []
    device.post(lambda: seen.append(0))

    async def body() -> None:
        for number in range(1, 20):
            device.post(lambda number=number: seen.append(number))
        await device.run(lambda: seen.append(20))

    run_with(device, body)
    assert seen == list(range(21))


def test_background_runs_until_it_has_nothing_to_do_and_again_after_a_command() -> None:
    work: list[int] = []
    done: list[int] = []

    def background() -> bool:
        if work:
            done.append(work.pop())
        return bool(work)

    device = DeviceThread("device", background)

    async def body() -> None:
        for _ in range(3):
            await device.run(lambda: work.extend([1, 2, 3]))
            while work:
                await trio.sleep(0.001)

    run_with(device, body)
    assert len(done) == 9


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_of_the_background_surfaces_in_serve(error: type[BaseException]) -> None:
    def background() -> bool:
        raise error("planned")

    device = DeviceThread("device", background)
    with pytest.RaisesGroup(pytest.RaisesExc(error, match="planned"), allow_unwrapped=False):
        run_with(device, trio.sleep_forever)
    assert device.ended


def test_no_task_waits_for_a_dead_thread() -> None:
    device = DeviceThread("device")
    told: list[str] = []

    async def wait_for(name: str) -> None:
        with pytest.raises(trio.ClosedResourceError, match="device thread has ended"):
            await device.run(lambda: None)
        told.append(name)

    async def main() -> None:
        async with trio.open_nursery() as waiters:
            with pytest.RaisesGroup(pytest.RaisesExc(KeyError, match="planned")):
                async with trio.open_nursery() as stages:
                    await stages.start(device.serve)
                    device.post(lambda: time.sleep(0.02))
                    device.post(raise_error)
                    waiters.start_soon(wait_for, "waiting")
        await wait_for("late")

    trio.run(main)
    assert told == ["waiting", "late"]


def test_cancelling_a_caller_lets_its_command_finish() -> None:
    device = DeviceThread("device")
    seen: list[str] = []

    def slow() -> None:
        time.sleep(0.02)
        seen.append("finished")

    async def body() -> None:
        with trio.move_on_after(0.001) as scope:
            await device.run(slow)
        assert scope.cancelled_caught
        await device.run(lambda: None)
        assert seen == ["finished"]

    run_with(device, body)


def test_the_end_abandons_waiting_commands_and_leaves_no_thread() -> None:
    device = DeviceThread("device")
    ran: list[int] = []

    async def body() -> None:
        device.post(lambda: time.sleep(0.02))
        device.post(lambda: ran.append(1))
        await trio.sleep(0.005)

    run_with(device, body)
    assert ran == []
    assert "device" not in {thread.name for thread in threading.enumerate()}


def test_an_idle_thread_uses_no_cpu_time() -> None:
    device = DeviceThread("device")
    used: list[float] = []

    async def body() -> None:
        before = await device.run(time.thread_time)
        await trio.sleep(0.2)
        used.append(await device.run(time.thread_time) - before)

    run_with(device, body)
    assert used[0] < 0.01
