"""Tools from typed functions.

Invariant: whatever the policy writes, a call returns a `ToolResult`. A wrong call is an answer
that a model can learn from, and so is one that takes too long for its tool. An exception in the
tool's own code is a fault of the infrastructure and goes on up, unless it is a `ToolError`, raised
to tell the model, or of a kind that the tool names in `errors`.
"""

import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack, overload

import trio
from trio.lowlevel import RunVar

from .messages import CallStatus, ToolCall
from .places import Places, places_of_run
from .schema import ArgumentError, convert, convert_text, json_default, json_schema
from .worker_threads import ThreadCall, ThreadStatistics, WorkerThreads

RESULT_CHARACTERS = 16_384
# Of all tools of a run together. Not trio's own threads: calls that hang must not hold up others.
THREADS = 64
MAX_ABANDONED = 16

# What the policy reads about a call that isn't run.
_PROBLEMS: Mapping[CallStatus, str] = {
    "ok": "the call is fine",
    "malformed": "the call doesn't follow the format",
    "unclosed": "the call is not closed",
    "invalid_json": "the call is not valid JSON",
    "missing_name": "the call names no tool",
    "bad_arguments": "the arguments are not an object of named values",
    "duplicate_key": "an argument is given twice",
    "over_limit": "the call is too long, or one too many",
    "in_reasoning": "the call is inside the reasoning; end the reasoning first",
}

_THREADS_OF_RUN: RunVar[WorkerThreads] = RunVar("threads of tools")


class ToolError(Exception):
    """Raised by a tool's function: the text is the result that the policy reads."""


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered.

    Attributes:
      content: the text for the policy.
      is_error: the call was wrong, or the tool refused it.
    """

    content: str
    is_error: bool = False


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call.

    Attributes:
      description: the docstring without its sections.
      parameters: the JSON schema of the arguments, an object.
      types: the parameters' type hints, in order.
      in_thread: a synchronous function runs in a worker thread; others run in place and
        must be quick, as every episode waits for them. A call that is cancelled abandons its
        thread; others take its place, as in `worker_threads`.
      deadline_seconds: of one call, waiting for a place included; None sets no deadline
        beside those of the rollout.
      concurrency: so many calls of a run at once; others wait, in order. None sets no limit.
      errors: kinds of exceptions that are an answer.
      max_result_characters: of an answer; what is longer is cut, and says so.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    types: Mapping[str, Any]
    function: Callable[..., Any]
    in_thread: bool = False
    deadline_seconds: float | None = None
    concurrency: int | None = None
    errors: tuple[type[Exception], ...] = ()
    max_result_characters: int = RESULT_CHARACTERS
    _places: Places = field(
        default_factory=partial(Places, "places of a tool"), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        self._check("concurrency", ">= 1", lambda value: value >= 1)
        self._check("max_result_characters", ">= 1", lambda value: value >= 1)
        self._check("deadline_seconds", "> 0 and finite", lambda value: 0 < value < math.inf)
        in_place = not (self.in_thread or inspect.iscoroutinefunction(self.function))
        if self.deadline_seconds is not None and in_place:
            raise ValueError(
                f"nothing can keep the tool {self.name!r} to its deadline_seconds, since it "
                "runs in place; set in_thread=True"
            )

    def _check(self, option: str, condition: str, allowed: Callable[[float], bool]) -> None:
        value = getattr(self, option)
        if value is not None and not allowed(value):
            raise ValueError(
                f"{option} of the tool {self.name!r} must be {condition}, got {value}"
            )

    async def __call__(self, call: ToolCall) -> ToolResult:
        """Answer one call.

        Raises:
          TooManyHungThreads: see `worker_threads`. Beside it, only an exception of the function
            that is neither ToolError nor in `errors` is raised.
        """
        try:
            return ToolResult(self._text(await self._run_in_time(self._arguments(call))))
        except _CallError as error:
            return ToolResult(f"{self.name}: {error}", is_error=True)
        except ToolError as error:
            return ToolResult(self._cut(str(error)), is_error=True)
        except self.errors as error:
            text = f"{self.name}: {type(error).__name__}: {error}"
            return ToolResult(self._cut(text), is_error=True)

    def _arguments(self, call: ToolCall) -> dict[str, Any]:
        if call.status == "malformed" and not call.problem:
            raise _CallError(f"malformed call; write {self._usage()}")
        if call.status != "ok":
            named = ", ".join(self.types) or "none"
            raise _CallError(f"{describe_problem(call)}; its arguments are: {named}")
        if call.argument is not None:
            return self._from_text(call.argument)
        if unknown := sorted(set(call.arguments) - set(self.types)):
            raise _CallError(f"unknown argument {unknown[0]!r}; write {self._usage()}")
        required: list[str] = self.parameters["required"]
        if missing := [name for name in required if name not in call.arguments]:
            raise _CallError(f"missing argument {missing[0]!r}; write {self._usage()}")
        return {name: self._value(name, value) for name, value in call.arguments.items()}

    def _from_text(self, text: str) -> dict[str, Any]:
        if not self.types and not text.strip():
            return {}
        if len(self.types) != 1:
            raise _CallError(f"takes {len(self.types)} arguments by name; write {self._usage()}")
        (name,) = self.types
        return {name: self._value(name, text, from_text=True)}

    def _value(self, name: str, value: Any, *, from_text: bool = False) -> Any:
        try:
            return (convert_text if from_text else convert)(value, self.types[name])
        except ArgumentError as error:
            raise _CallError(f"argument {name!r} {error}") from None

    async def _run_in_time(self, arguments: Mapping[str, Any]) -> Any:
        if self.deadline_seconds is None:
            return await self._run_in_place(arguments)
        with trio.move_on_after(self.deadline_seconds):
            return await self._run_in_place(arguments)
        raise _CallError(f"took more than {self.deadline_seconds:g} s and was given up")

    async def _run_in_place(self, arguments: Mapping[str, Any]) -> Any:
        if self.concurrency is None:
            return await self._run(arguments)
        async with places_of_run(self._places, self.concurrency):
            return await self._run(arguments)

    async def _run(self, arguments: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(**arguments)
        if self.in_thread:
            call = partial(self.function, **arguments)
            return await ThreadCall(_worker_threads(), self.name, call).result()
        return self.function(**arguments)

    def _usage(self) -> str:
        return f"{self.name}({', '.join(self.types)})"

    def _text(self, value: Any) -> str:
        if isinstance(value, str):
            return self._cut(value)
        try:
            return self._cut(json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(
                f"the tool {self.name!r} must return text or what JSON has, got {value!r:.100}"
            ) from error

    def _cut(self, text: str) -> str:
        left_out = len(text) - self.max_result_characters
        if left_out <= 0:
            return text
        return f"{text[: self.max_result_characters]}… ({left_out} more characters are left out)"


class _Options(TypedDict, total=False):
    in_thread: bool
    deadline_seconds: float | None
    concurrency: int | None
    errors: tuple[type[Exception], ...]
    max_result_characters: int


@overload
def tool(
    function: None = None, **options: Unpack[_Options]
) -> Callable[[Callable[..., Any]], Tool]: ...


@overload
def tool(function: Callable[..., Any], **options: Unpack[_Options]) -> Tool: ...


def tool(
    function: Callable[..., Any] | None = None, **options: Unpack[_Options]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function, synchronous or async; also as a decorator, with options.

    The name is the function's, the schema comes from its type hints and defaults, the
    descriptions from its docstring (a section `Args:` describes the parameters).

    A call `name(text)` without named arguments gives its text to the only parameter,
    converted to its type. A result that is no string is written as JSON.

    Args:
      function: all parameters typed as `str`, `int`, `float`, `bool`, `list[...]`, `dict`,
        `Literal[...]`, an `Enum` of texts or integers, or one of these `| None`.
      in_thread: run a synchronous function that blocks in a worker thread. A deadline ends
        the call but can't stop the thread: give what blocks a timeout of its own.
      deadline_seconds: a call that takes longer is given up, and the policy reads so as its
        result; above 0. Only for functions that are async or run in a thread.
      concurrency: so many calls at once, at least 1; waiting counts for the deadline.
      errors: kinds of exceptions of the function that the policy reads, as in `(OSError,)`; others
        fail the episode, which is tried again.
      max_result_characters: longer results are cut, at least 1.

    Raises:
      TypeError: for a parameter without a type, or of a type that is not in the list.
      ValueError: for numbers out of range, and a deadline that nothing can keep.

    Example:
      >>> def double(number: int) -> int:
      ...     '''Return twice the number.'''
      ...     return 2 * number
      >>> trio.run(tool(double), ToolCall("double", argument="21"))
      ToolResult(content='42', is_error=False)
      >>> trio.run(tool(double), ToolCall("double", argument="x")).content
      "double: argument 'number' must be integer, got 'x'"
    """
    if function is None:
        return partial(_make, **options)
    return _make(function, **options)


def _make(function: Callable[..., Any], **options: Unpack[_Options]) -> Tool:
    name = function.__name__
    types = _parameter_types(function)
    description, notes = _read_docstring(inspect.getdoc(function) or "")
    signature = inspect.signature(function).parameters
    properties = {
        key: {**json_schema(hint), **_notes(notes.get(key), signature[key].default)}
        for key, hint in types.items()
    }
    required = [key for key in types if signature[key].default is inspect.Parameter.empty]
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name, description, schema, types, function, **options)


def _notes(description: str | None, default: Any) -> dict[str, Any]:
    """Return what a schema says of a parameter beside its type."""
    notes: dict[str, Any] = {} if description is None else {"description": description}
    return notes if default is inspect.Parameter.empty else {**notes, **json_default(default)}


def describe_problem(call: ToolCall) -> str:
    """Say in words for the policy why a call isn't run.

    Example:
      >>> describe_problem(ToolCall("f", status="unclosed"))
      'the call is not closed'
    """
    return call.problem or _PROBLEMS[call.status]


async def answer_call(call: ToolCall, tools: Sequence[Tool]) -> ToolResult:
    """Let the tool that a call names answer it; a call that names none of them is an error.

    Raises:
      Exception: what `Tool.__call__` raises.

    Example:
      >>> trio.run(answer_call, ToolCall("f"), ()).content
      "there is no tool 'f'; use none"
    """
    for made in tools:
        if made.name == call.name:
            return await made(call)
    named = f"there is no tool {call.name!r}"
    problem = named if call.status == "ok" else describe_problem(call)
    names = " or ".join(made.name for made in tools) or "none"
    return ToolResult(f"{problem}; use {names}", is_error=True)


def tool_threads() -> ThreadStatistics:
    """Return what the threads of this trio run's tools do now."""
    return _worker_threads().statistics()


def _worker_threads() -> WorkerThreads:
    try:
        return _THREADS_OF_RUN.get()
    except LookupError:
        hint = "give what blocks a timeout of its own, shorter than the tool's deadline"
        threads = WorkerThreads("tools", threads=THREADS, max_abandoned=MAX_ABANDONED, hint=hint)
        _THREADS_OF_RUN.set(threads)
        return threads


class _CallError(Exception):
    """The call itself is wrong; the text, after the tool's name, is the answer."""


def _parameter_types(function: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    types = {}
    for name, parameter in inspect.signature(function).parameters.items():
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not by_name or name not in hints:
            raise TypeError(
                f"the tool {function.__name__!r} needs a type hint for every parameter and none "
                f"that is positional-only, * or **; see {str(parameter)!r}"
            )
        types[name] = hints[name]
    return types


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into its description and its notes on parameters."""
    description, *sections = re.split(r"^([A-Z]\w+):[ \t]*$", text, flags=re.MULTILINE)
    by_title = dict(zip(sections[::2], sections[1::2], strict=True))
    notes: dict[str, str] = {}
    for entry in re.split(r"\n(?=\s*\w+(?: \([^)]*\))?: )", by_title.get("Args", "")):
        if found := re.match(r"\s*(\w+)(?: \([^)]*\))?: (.*)", entry, flags=re.DOTALL):
            notes[found.group(1)] = " ".join(found.group(2).split())
    return " ".join(description.split()), notes
