"""A synchronous environment that does harm in some of its episodes, in threads or processes."""

import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from headrace.envs import Message, StepResult, Task

RELEASE = threading.Event()  # of what hangs in threads of this process
BEGUN, OPENED, HARMED, CLOSED = "begun", "opened", "harmed", "closed"


def fail() -> None:
    raise ValueError("no such answer")


def hang() -> None:
    RELEASE.wait(600.0)


def spin() -> None:
    while not RELEASE.is_set():
        pass


def exit_at_once() -> None:
    os._exit(5)


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    sys.exit(0)  # as a parser of arguments does


def interrupt() -> None:
    raise KeyboardInterrupt


def leave_a_thread() -> None:
    threading.Thread(target=RELEASE.wait, args=(600.0,), name="left", daemon=True).start()


def leave_a_child() -> None:
    subprocess.Popen(["sleep", "600"])


def flood_output() -> None:
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        sys.stdout.write("x" * 1000 + "\n")


def recurse() -> None:
    recurse()


def say_much() -> StepResult:
    return StepResult((Message("user", "1" * 20_000_000),))


def endless() -> Any:
    while True:
        yield Message("user", "1")


HARM: dict[str, Callable[[], Any]] = {
    "fail": fail,
    "hang": hang,
    "spin": spin,
    "exit_at_once": exit_at_once,
    "crash": crash,
    "leave": leave,
    "interrupt": interrupt,
    "leave_a_thread": leave_a_thread,
    "leave_a_child": leave_a_child,
    "flood_output": flood_output,
    "recurse": recurse,
    "say_much": say_much,
    "nothing": lambda: "no StepResult",
    "not_finite": lambda: StepResult(reward=float("nan"), terminated=True),
    "huge_reward": lambda: StepResult(reward=10**400, terminated=True),
    "text_reward": lambda: StepResult(reward="1", terminated=True),  # type: ignore[arg-type]
    "no_messages": lambda: StepResult((1, 2)),  # type: ignore[arg-type]
    "endless": lambda: StepResult(endless()),
    "surrogates": lambda: StepResult((Message("user", "\ud800"),)),
    "info": lambda: StepResult(terminated=True, info={"a": "b"}),  # type: ignore[dict-item]
    "no_info": lambda: StepResult(terminated=True, info=None),  # type: ignore[arg-type]
    "undecided": StepResult,
    "exception_that_hides": lambda: (_ for _ in ()).throw(Hidden()),
}


class Hidden(Exception):
    """Can't be described."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Hostile:
    """Does harm in `call` in some of all episodes, which a folder counts."""

    def __init__(self, folder: str, kinds: Sequence[str], every: int, call: str = "step"):
        """Args:
        folder: of notes, shared by all processes.
        kinds: of harm; each is done in one episode of `every`, from the half on.
        """
        self._folder = Path(folder)
        self._kinds, self._every, self._call = kinds, every, call
        self._harm: Callable[[], Any] | None = None

    def _note(self, what: str) -> int:
        """Write a sign into a file; return how many there are, by then."""
        with (self._folder / what).open("a") as file:
            file.write(".")
            file.flush()
            return file.tell()

    def _do(self, call: str) -> Any:
        if self._harm is None or call != self._call:
            return None
        self._note(HARMED)
        return self._harm()

    def __enter__(self) -> Self:
        place = (self._note(BEGUN) + self._every // 2) % self._every
        self._harm = HARM[self._kinds[place]] if place < len(self._kinds) else None
        self._do("open")
        self._note(OPENED)
        return self

    def __exit__(self, *error: object) -> None:
        self._note(CLOSED)
        self._do("close")

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        wrong = self._do("reset")
        return [Message("user", "0")] if wrong is None else wrong

    def step(self, message: Message) -> StepResult:
        wrong = self._do("step")
        return StepResult(reward=random.random(), terminated=True) if wrong is None else wrong
