"""Calls a function for many items, in this process or in others.

Invariant: results come in the order of the items and don't depend on the number of workers. No
worker outlives the call or this process, however either of them ends.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from ..errors import HeadraceError
from .timers import collect_rarely

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int,
    on_done: Callable[[], None],
) -> list[Result]:
    """Return the function's result for every item, in their order.

    Args:
      function: importable by other processes if there is more than one worker.
      on_done: called after each item, perhaps in another thread.

    Raises:
      HeadraceError: if a worker process dies.
      BaseException: the first one that the function raises; what didn't start, won't.
    """
    if min(workers, len(items)) <= 1:
        results = []
        for item in items:
            results.append(function(item))
            on_done()
        return results

    def note(done: Future[Result]) -> None:
        on_done()

    with _pool(min(workers, len(items))) as pool:
        with _interrupts_afterwards():
            futures = [pool.submit(function, item) for item in items]
        for future in futures:
            future.add_done_callback(note)
        return [future.result() for future in futures]


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    others = set(multiprocessing.active_children())
    # Spawned, since a fork of a process with threads may hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker)
    try:
        yield pool
    except BaseException as error:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()  # which may be in the middle of a long simulation
        pool.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise HeadraceError(
                "a process that simulates died, perhaps for lack of memory; set --tune.workers 1"
            ) from error
        raise
    pool.shutdown()


@contextmanager
def _interrupts_afterwards() -> Iterator[None]:
    """Let Ctrl-C wait: in the middle of starting its processes a pool can't be shut down."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _begin_worker() -> None:
    collect_rarely()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at Ctrl-C, which all get, only one explains
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
