"""What a run and its worker processes say to each other: frames of pickles over a socket.

Invariant: what a worker answers makes nothing in the run but records of this package and plain
values. A frame is the size of its body, 8 bytes, and the body.
"""

import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .base import StepResult, Task
from .messages import Message, ToolCall

_ADVICE = "define it at the top level of a module that can be imported"

HEADER = struct.Struct("!Q")

Call = Literal["start", "open", "reset", "step", "close", "run"]


@dataclass(frozen=True)
class Request:
    """One call for the worker to make.

    Attributes:
      episode: the name of the one that it is made for, if any.
    """

    call: Call
    arguments: tuple[Any, ...] = ()
    episode: str = ""


@dataclass(frozen=True)
class Answer:
    """How a call ended.

    Attributes:
      kind: "broken" for an `EnvironmentBroken`, "unscored" for a `RewardFailed`, "error" for any
        other exception.
      value: what the call returned, or the exception in words.
      details: the exception's traceback.
      reusable: of a close, run or error: no thread and no child is left behind.
    """

    kind: Literal["ok", "error", "broken", "unscored"]
    value: Any = None
    details: str = ""
    reusable: bool = True


_TOO_LARGE = (MemoryError, OverflowError)  # sizes in a broken pickle

_RECORDS = {
    (record.__module__, record.__qualname__): record
    for record in (Answer, Message, StepResult, Task, ToolCall)
}


def pickled(function: Callable[..., Any]) -> bytes:
    """Return what a worker gets instead of a function or class: the name of its module's.

    Raises:
      ValueError: for one that no other process can import.
    """
    try:
        data = pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"{function!r} can't be sent to another process ({error}); {_ADVICE}"
        ) from error
    if b"__main__" in data:
        raise ValueError(
            f"{function!r} is of the script that is run, and not importable; {_ADVICE}"
        )
    return data


def frame(message: Request | Answer) -> bytes:
    """Return a message as it is sent. Raises what pickle raises."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body


def read_answer(body: bytes) -> Answer:
    """Return the answer in a frame's body.

    Raises:
      pickle.UnpicklingError: if it holds anything but records and plain values, or is broken.
    """
    try:
        answer = _Records(io.BytesIO(body)).load()
    except (EOFError, AttributeError, LookupError, TypeError, ValueError, *_TOO_LARGE) as error:
        raise pickle.UnpicklingError(f"a broken answer: {error}") from error
    if not isinstance(answer, Answer):
        raise pickle.UnpicklingError(f"a {type(answer).__name__} and not an answer")
    return answer


class _Records(pickle.Unpickler):
    """Pickles may call anything; these may only make records."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        record = _RECORDS.get((module_name, global_name))
        if record is None:
            raise pickle.UnpicklingError(
                f"it holds a {module_name}.{global_name}; return Message, StepResult and plain "
                "values only (numbers, text, lists, tuples, dicts)"
            )
        return record
