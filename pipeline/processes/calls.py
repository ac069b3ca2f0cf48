"""Functions that all processes of a run call alike, in one order.

Process 0 decides which one is called when. Just before it calls one, it tells the other
processes, its followers, which call theirs of the same name with the same arguments. What such
a function does depends on these and on earlier calls only; so all processes make the same JAX
calls in the same order, as programs need that run on the devices of several.

A process on its own tells nobody: then a function is called as it is.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import outcome

from ..errors import HeadraceError, describe, stage

P = ParamSpec("P")
T = TypeVar("T")
Message = tuple[str, tuple[Any, ...]]  # a name, and arguments

# Messages that aren't the names of functions.
_RESULT, _FAILED, _END = "result", "failed", "end"
_AGREE_SECONDS = 10.0  # for what fails in a follower to fail in process 0, too


class Hear(Protocol):
    """Waits for what process 0 tells next."""

    def __call__(self, seconds: float | None = None) -> Message:
        """Wait so long at most, if not None, and then raise a TimeoutError."""
        ...


class Calls:
    """The functions of one process; equal ones are added in every process.

    Example:
      >>> messages: list[Message] = []
      >>> leading = Calls(tell=messages.append)
      >>> double = leading.add("double", lambda number: 2 * number)
      >>> double(21)
      42
      >>> leading.end()
      >>> heard = iter(messages)
      >>> following, seen = Calls(hear=lambda seconds=None: next(heard)), []
      >>> _ = following.add("double", seen.append)
      >>> following.follow()
      >>> seen
      [21]
    """

    def __init__(
        self,
        tell: Callable[[Message], None] | None = None,
        hear: Hear | None = None,
    ):
        """Args:
        tell: tells all followers; of process 0, where there are others.
        hear: of a follower.
        """
        self._tell = tell
        self._hear = hear
        self._functions: dict[str, Callable[..., Any]] = {}

    def add(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """Give a function its name, one that no other has.

        Returns:
          What calls it in every process, from process 0's device thread: arguments are pickled,
          and none may be a JAX array. Where it raises, it must do so in all of them.
        """
        if name in self._functions or name in (_RESULT, _FAILED, _END):
            raise ValueError(f"the name of a function must be a new one, got {name!r}")
        self._functions[name] = function
        tell = self._tell
        if tell is None:
            return function

        @wraps(function)
        def told(*arguments: P.args, **named: P.kwargs) -> T:
            tell((name, arguments))
            try:
                return function(*arguments, **named)
            except Exception as error:
                tell((_FAILED, (name, describe(error))))
                raise

        return told

    def share(self, function: Callable[P, T] | None) -> Callable[P, T]:
        """Call a function in process 0 only, and let the others have what it gives.

        Args:
          function: None in followers, which haven't got it. Its results are pickled; an error is
            an error everywhere.
        """
        tell, hear = self._tell, self._hear
        if hear is not None:
            return lambda *_, **__: _next_result(hear)
        assert function is not None, "process 0 has it"
        if tell is None:
            return function

        def shared(*arguments: P.args, **named: P.kwargs) -> T:
            result = outcome.capture(function, *arguments, **named)
            failed = describe(result.error) if isinstance(result, outcome.Error) else None
            value = result.value if isinstance(result, outcome.Value) else None
            tell((_RESULT, (value, failed)))
            return result.unwrap()

        return shared

    def follow(self) -> None:
        """Call what process 0 calls, until it says that this was all.

        Raises:
          StageFailed: with a function's name, where that one fails here and not in process 0.
        """
        hear = self._hear
        assert hear is not None, "only followers do"
        while (message := hear())[0] != _END:
            name, arguments = message
            if name == _FAILED:
                raise HeadraceError(
                    "the processes differ: in process 0 {!r} failed: {}".format(*arguments)
                )
            with stage(name):
                try:
                    self._functions[name](*arguments)
                except Exception as error:
                    if not _fails_too(hear):
                        raise
                    del error  # process 0 decides what comes of it

    def end(self) -> None:
        """Tell the followers that this was all."""
        if self._tell is not None:
            self._tell((_END, ()))


class FailedElsewhere(HeadraceError):
    """A function that only process 0 has raised an error there."""


def _fails_too(hear: Hear) -> bool:
    """Whether what failed here did so in process 0, which may wait for this process instead."""
    try:
        return hear(_AGREE_SECONDS)[0] == _FAILED
    except TimeoutError:
        return False


def _next_result(hear: Hear) -> Any:
    name, arguments = hear()
    if name != _RESULT:
        raise HeadraceError(f"the processes differ: process 0 calls {name!r}, a result was due")
    value, failed = arguments
    if failed is not None:
        raise FailedElsewhere(failed)
    return value
