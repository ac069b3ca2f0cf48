"""A synchronous environment that notes who calls it, and helpers to run it in threads."""

import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

import trio

from headrace.envs import Env, Message, StepResult, SyncEnv, Task

TASK = Task("0")
HELLO = Message("user", "0")
TURN = Message("assistant", "1")
GIVE_UP_SECONDS = 10.0  # far more than anything here takes, for a loaded machine


@dataclass
class Books:
    """What all environments of a test did, from whichever threads."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    release: threading.Event = field(default_factory=threading.Event)
    opened: int = 0
    closed: int = 0
    overlaps: int = 0
    inside: Counter[int] = field(default_factory=Counter)
    threads: list[tuple[str, int, str]] = field(default_factory=list)

    def block(self) -> None:
        """Hang until the end of the test."""
        self.release.wait(GIVE_UP_SECONDS)

    def names(self, call: str) -> list[str]:
        return [name for what, _, name in self.threads if what == call]

    def idents(self, call: str) -> list[int]:
        return [ident for what, ident, _ in self.threads if what == call]


class Fake:
    """Calls `hook(call)` in every call; notes who called."""

    def __init__(self, books: Books, hook: Callable[[str], None]) -> None:
        self.books = books
        self.hook = hook

    def _call(self, call: str) -> None:
        books, thread = self.books, threading.current_thread()
        with books.lock:
            books.inside[id(self)] += 1
            books.overlaps += books.inside[id(self)] > 1
            books.threads.append((call, threading.get_ident(), thread.name))
        try:
            self.hook(call)
        finally:
            with books.lock:
                books.inside[id(self)] -= 1

    def __enter__(self) -> Self:
        self._call("open")
        with self.books.lock:
            self.books.opened += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self.books.lock:
            self.books.closed += 1
        self._call("close")

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        self._call("reset")
        return [HELLO]

    def step(self, message: Message) -> StepResult:
        self._call("step")
        return StepResult(reward=1.0, terminated=True)


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(GIVE_UP_SECONDS):
        while not condition():
            await trio.sleep(0.01)


def nothing(call: str) -> None: ...


def fakes(books: Books, hook: Callable[[str], None] = nothing) -> Callable[[], SyncEnv]:
    return partial(Fake, books, hook)


async def talk(make: Callable[[], Env], seconds: float = GIVE_UP_SECONDS) -> StepResult | None:
    """One episode whose reset and step have a deadline each, as in a rollout."""
    async with make() as env:
        with trio.move_on_after(seconds):
            await env.reset(TASK, 0)
            return await env.step(TURN)
    return None


def run(function: Callable[[], Awaitable[object]]) -> None:
    """Run an async function within a deadline."""

    async def main() -> None:
        with trio.fail_after(GIVE_UP_SECONDS):
            await function()

    trio.run(main)


def hang_in_step(books: Books, call: str) -> None:
    if call == "step":
        books.block()
