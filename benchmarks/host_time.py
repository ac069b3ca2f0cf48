"""How long the device thread works between its JAX calls, and how long within them.

The compiled programs and `jax.device_get` are wrapped in clocks, in the benchmark only. What
the thread computes outside of them is scheduling, bookkeeping, commands, and letting go of
arrays: the host's share of a dispatch. Within them JAX checks and hands over arguments and
wraps results. Both are counted in CPU time of that thread, so neither waiting nor other
processes are in it.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import jax

from headrace.pipeline.sampler.programs import Programs


class HostClock:
    """Adds up what one thread computes between the end of a wrapped call and the next one."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._call_seconds = 0.0
        self._entered = 0.0
        self._thread = 0
        self._left = 0.0

    @property
    def seconds(self) -> float:
        """CPU seconds between wrapped calls, so far."""
        return self._seconds

    @property
    def call_seconds(self) -> float:
        """CPU seconds within wrapped calls, so far."""
        return self._call_seconds

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function whose own time isn't the host's."""

        def clocked(*operands: Any) -> Any:
            self._enter()
            try:
                return function(*operands)
            finally:
                self._leave()

        return clocked

    def _enter(self) -> None:
        self._entered = time.thread_time()
        if self._thread == threading.get_ident():
            self._seconds += self._entered - self._left

    def _leave(self) -> None:
        self._thread = threading.get_ident()
        self._left = time.thread_time()
        self._call_seconds += self._left - self._entered


def wrap_programs(programs: Programs, clock: HostClock) -> Programs:
    """Wrap every program in the clock, those in mappings too."""
    wrapped = {
        field.name: _wrap(getattr(programs, field.name), clock) for field in fields(programs)
    }
    return replace(programs, **wrapped)


@contextmanager
def reading_clocked(clock: HostClock) -> Iterator[None]:
    """Wrap `jax.device_get`, in which the thread waits for the device, within the context."""
    original = jax.device_get
    jax.device_get = clock.wrap(original)
    try:
        yield
    finally:
        jax.device_get = original


def _wrap(value: Any, clock: HostClock) -> Any:
    if isinstance(value, Mapping):
        return {key: _wrap(entry, clock) for key, entry in value.items()}
    return clock.wrap(value) if callable(value) else value
