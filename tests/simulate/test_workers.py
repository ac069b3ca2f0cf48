"""Workers change nothing, and none is left."""

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.pipeline.errors import ConfigError, HeadraceError
from headrace.pipeline.simulate.workers import run_all

ROOT = Path(__file__).resolve().parents[2]


def square(number, *, fails_at=None):
    """What the workers call; they import it from here."""
    if number == fails_at:
        raise ConfigError("no such number")
    return number * number


def die(number):
    os._exit(3)


def sleep_long(number):
    time.sleep(60)


def ignore():
    pass


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order_whatever_the_number_of_workers(workers):
    done = []
    found = run_all(square, [3, 1, 2], workers=workers, on_done=lambda: done.append(1))
    assert found == [9, 1, 4]
    assert len(done) == 3
    assert not multiprocessing.active_children()


def test_no_items_no_results():
    assert run_all(square, [], workers=2, on_done=ignore) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_function_ends_all(workers):
    failing = functools.partial(square, fails_at=2)
    with pytest.raises(ConfigError, match="no such number"):
        run_all(failing, range(6), workers=workers, on_done=ignore)
    assert not multiprocessing.active_children()


def test_a_worker_that_dies_is_an_error_that_says_what_to_do():
    with pytest.raises(HeadraceError, match=r"died.*--tune\.workers 1"):
        run_all(die, range(2), workers=2, on_done=ignore)


class Interrupting(list):
    """Items at the first of which Ctrl-C comes, while the pool is being filled."""

    def __init__(self, items):
        super().__init__(items)
        self.given = 0

    def __iter__(self):
        signal.raise_signal(signal.SIGINT)
        for item in super().__iter__():
            self.given += 1
            yield item


def test_an_interrupt_waits_until_the_pool_can_be_shut_down():
    items = Interrupting([1, 2, 3])
    with pytest.raises(KeyboardInterrupt):
        run_all(square, items, workers=2, on_done=ignore)
    assert items.given == 3
    assert not multiprocessing.active_children()


PROGRAM = """
import sys
sys.path[:0] = [{tests!r}]
from headrace.pipeline.simulate.workers import run_all
import test_workers
if __name__ == "__main__":
    print("ready", flush=True)
    run_all(test_workers.sleep_long, range(2), workers=2, on_done=test_workers.ignore)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(tmp_path, how):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(tests=str(Path(__file__).parent)))
    with subprocess.Popen(
        [sys.executable, str(script)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        try:
            assert parent.stdout.readline() == b"ready\n"
            workers = wait_for_workers(parent.pid)
            parent.send_signal(how)
            parent.wait(20)
        finally:
            parent.kill()  # a failure here must not become one of the next test
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.05)


def wait_for_workers(pid):
    """Return the parent's three children (two workers, one tracker) once they run."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    deadline = time.monotonic() + 20
    while len(found := children.read_text().split()) < 3:
        assert time.monotonic() < deadline, "the workers don't start"
        time.sleep(0.05)
    time.sleep(0.3)  # let them reach their function
    return found
