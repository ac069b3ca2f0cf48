"""The device thread: order, errors, cancellation, and nothing left behind."""

import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.errors import PipelineStalled


def run_with(
    device: DeviceThread, body: Callable[[], Awaitable[None]], clock: MockClock | None = None
) -> None:
    """Run `body` while the thread serves; both end together."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            await body()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def raise_error() -> None:
    raise KeyError("planned")


class Hang:
    """A command that hangs until the test is over."""

    def __init__(self) -> None:
        self._entered = threading.Event()
        self._go_on = threading.Event()

    def hang(self, argument: int = 0) -> bool:
        self._entered.set()
        self._go_on.wait()
        return False

    def interrupt(self) -> None:
        signal.raise_signal(signal.SIGINT)
        self.hang()

    async def entered(self) -> None:
        await trio.to_thread.run_sync(self._entered.wait)

    @contextmanager
    def thread(self, background: Callable[[], bool] | None = None) -> Iterator[DeviceThread]:
        """Make a device thread that gives up soon; in the end let it go on and wait for it."""
        device = DeviceThread("device", background, close_deadline_seconds=0.05)
        try:
            yield device
        finally:
            self._go_on.set()
            device._thread.join()


def stalls_in(name: str) -> pytest.RaisesExc[PipelineStalled]:
    message = rf"the device thread is still in '{name}' 0.05 s after .* abandoned"
    return pytest.RaisesExc(PipelineStalled, match=message)


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
    started, released = threading.Event(), threading.Event()
    ran: list[int] = []

    def hold() -> None:
        started.set()
        released.wait()

    async def release_after_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)  # `serve` has asked the thread to end in the same tick
            released.set()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(release_after_the_end)
            await nursery.start(device.serve)
            device.post(hold)
            device.post(lambda: ran.append(1))
            await trio.to_thread.run_sync(started.wait)
            nursery.cancel_scope.cancel()

    trio.run(main)
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


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("way", ["posted", "run", "background"])
def test_a_thread_that_hangs_at_the_end_is_named_and_abandoned(way: str, virtual: bool) -> None:
    hang = Hang()
    clock = MockClock(autojump_threshold=0) if virtual else None

    async def start_hanging(device: DeviceThread) -> None:
        async with trio.open_nursery() as nursery:
            if way == "posted":
                device.post(partial(hang.hang, 1))
            elif way == "run":
                nursery.start_soon(device.run, partial(hang.hang, 1))
            await hang.entered()
            nursery.cancel_scope.cancel()

    with hang.thread(hang.hang if way == "background" else None) as device:
        with pytest.RaisesGroup(stalls_in(r"Hang\.hang"), allow_unwrapped=False):
            run_with(device, partial(start_hanging, device), clock)
        assert device.ended


def test_a_slow_end_is_no_stall_whatever_the_clock() -> None:
    """Virtual time jumps to the next deadline while a real thread works."""
    for _ in range(20):
        device = DeviceThread("device")

        async def body(device: DeviceThread = device) -> None:
            device.post(lambda: time.sleep(0.005))
            await trio.sleep(1)

        run_with(device, body, MockClock(autojump_threshold=0))
    assert "device" not in {thread.name for thread in threading.enumerate()}


def test_the_reason_for_the_end_stays_visible_beside_the_stall() -> None:
    hang = Hang()

    async def fail(device: DeviceThread) -> None:
        device.post(hang.hang)
        await hang.entered()
        raise ValueError("the reason")

    reason = pytest.RaisesExc(ValueError, match="the reason")
    with hang.thread() as device, pytest.RaisesGroup(reason, stalls_in(r"Hang\.hang")):
        run_with(device, partial(fail, device))


def test_an_interruption_of_serve_itself_stays_visible_beside_the_stall() -> None:
    hang = Hang()

    async def interrupt(device: DeviceThread) -> None:
        await trio.testing.wait_all_tasks_blocked()
        device.post(hang.interrupt)

    async def main(device: DeviceThread) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt, device)
            await device.serve()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    both = pytest.RaisesGroup(
        KeyboardInterrupt, stalls_in(r"Hang\.interrupt"), flatten_subgroups=True
    )
    try:
        with hang.thread() as device, both:
            trio.run(main, device)
    finally:
        signal.signal(signal.SIGINT, before)


def test_waiting_tasks_are_told_when_the_thread_is_abandoned() -> None:
    hang = Hang()
    told: list[str] = []

    async def wait_for(device: DeviceThread, name: str) -> None:
        with pytest.raises(trio.ClosedResourceError, match="device thread has ended"):
            await device.run(hang.hang)
        told.append(name)

    async def main(device: DeviceThread) -> None:
        async with trio.open_nursery() as waiters:
            with pytest.RaisesGroup(stalls_in(r"Hang\.hang")):
                async with trio.open_nursery() as stages:
                    await stages.start(device.serve)
                    waiters.start_soon(wait_for, device, "hanging")
                    waiters.start_soon(wait_for, device, "queued")
                    await hang.entered()
                    stages.cancel_scope.cancel()
        await wait_for(device, "late")

    with hang.thread() as device:
        trio.run(main, device)
    assert sorted(told) == ["hanging", "late", "queued"]


def test_an_end_that_nobody_asked_for_is_an_error() -> None:
    def background() -> bool:
        device._stopping = True
        return False

    device = DeviceThread("device", background)
    message = "the device thread ended, and nobody had stopped it"
    with pytest.RaisesGroup(pytest.RaisesExc(PipelineStalled, match=message)):
        run_with(device, trio.sleep_forever)
