"""A synchronous environment for worker processes, which fails as its task says."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from headrace.envs import EnvironmentBroken, Message, RewardFailed, StepResult, Task

HUGE_BYTES = 1 << 20


class Unknown:
    """A class that a run doesn't read out of answers."""


class ArrayNumber(float):
    """A number as simulators have them."""


def exit_at_once() -> None:
    os._exit(3)


def exit_in_order() -> None:
    sys.exit("in order")


def crash() -> None:
    ctypes.string_at(0)


def use_up_memory() -> None:
    bytearray(1 << 62)


def spin() -> None:
    while True:
        pass


def flood() -> None:
    while True:
        sys.stdout.write("x" * 1000 + "\n")


def fail() -> None:
    raise KeyError("lost")


def fail_to_score() -> None:
    raise RewardFailed("no scorer for it")


def fail_for_all() -> None:
    raise EnvironmentBroken("no licence")


def leave_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def leave_a_child() -> None:
    subprocess.Popen(["sleep", "600"])


def leave_a_session() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def write_into_descriptors() -> None:
    sys.stdout.write("hello from stdout\n")
    sys.stderr.write("hello from stderr\n")
    os.write(1, b"\x00\xff raw \n")


FAULTS: dict[str, Callable[[], Any]] = {
    "exit_at_once": exit_at_once,
    "exit_in_order": exit_in_order,
    "crash": crash,
    "use_up_memory": use_up_memory,
    "spin": spin,
    "flood": flood,
    "fail": fail,
    "fail_to_score": fail_to_score,
    "fail_for_all": fail_for_all,
    "leave_a_thread": leave_a_thread,
    "leave_a_child": leave_a_child,
    "leave_a_session": leave_a_session,
    "write": write_into_descriptors,
    "unpicklable": threading.Lock,
    "foreign": Unknown,
    "huge": lambda: "x" * HUGE_BYTES,
    "nothing": lambda: None,
}


class Faulty:
    """Says the number of its process and of its episodes; `task.data` is {call: fault}."""

    opened = 0

    def __init__(self, open_fault: str = "nothing") -> None:
        self.open_fault = open_fault
        self.faults: dict[str, str] = {}

    def __enter__(self) -> Self:
        type(self).opened += 1
        FAULTS[self.open_fault]()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._fault("close")

    def _fault(self, call: str) -> Any:
        return FAULTS[self.faults.get(call, "nothing")]()

    def reset(self, task: Task, seed: int) -> Sequence[Message]:
        self.faults = dict(task.data)
        self._fault("reset")
        if task.id == "a set":
            return [Message("user", "".join({*"abcdefghij"}))]
        return [Message("user", f"{task.id} {seed} {os.getpid()} {self.opened}")]

    def step(self, message: Message) -> StepResult:
        wrong = self._fault("step")
        if wrong is not None:
            return StepResult((Message("user", wrong),))
        return StepResult(reward=ArrayNumber(1.5), terminated=True, info={"success": 1})
