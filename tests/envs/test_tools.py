"""Tools: schemas from signatures, and an answer to whatever a policy writes."""

import enum
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, get_args

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.envs import (
    CallStatus,
    ToolCall,
    ToolError,
    ToolResult,
    TooManyHungThreads,
    answer_call,
    answer_calls,
    describe_problem,
    tool,
    tool_threads,
)
from headrace.envs.schema import ArgumentError, convert, convert_text, json_schema
from headrace.envs.tools import MAX_ABANDONED, THREADS

Json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
HINTS: list[Any] = [
    str,
    int,
    float,
    bool,
    dict,
    list,
    list[int],
    list[list[str]],
    Literal["up", 2],
    int | None,
    dict[str, int],
]


def search(query: str, limit: int = 3, order: Literal["new", "old"] = "new") -> str:
    """Search the archive.

    The second paragraph belongs to the description.

    Args:
      query: words
        to look for.
      limit (int): at most so many.

    Returns:
      Nothing that a schema says.
    """
    return f"{query}|{limit}|{order}"


def negate(number: int) -> int:
    """Return the negative."""
    return -number


def answer(call: ToolCall, function: Any = search) -> ToolResult:
    return trio.run(tool(function), call)


def test_schema_and_descriptions_come_from_the_function() -> None:
    made = tool(search)
    assert made.name == "search"
    assert made.description == (
        "Search the archive. The second paragraph belongs to the description."
    )
    assert made.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "words to look for."},
            "limit": {"type": "integer", "description": "at most so many.", "default": 3},
            "order": {"enum": ["new", "old"], "default": "new"},
        },
        "required": ["query"],
    }


@pytest.mark.parametrize(
    ("arguments", "content"),
    [
        ({"query": "x"}, "x|3|new"),
        ({"query": "x", "limit": 5, "order": "old"}, "x|5|old"),
    ],
)
def test_named_arguments(arguments: dict[str, Any], content: str) -> None:
    assert answer(ToolCall("search", arguments)) == ToolResult(content)


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (
            ToolCall("search"),
            "search: missing argument 'query'; write search(query, limit, order)",
        ),
        (ToolCall("search", {"query": 1}), "search: argument 'query' must be string, got 1"),
        (
            ToolCall("search", {"query": "x", "order": "odd"}),
            "search: argument 'order' must be one of 'new', 'old', got 'odd'",
        ),
        (
            ToolCall("search", {"query": "x", "limit": True}),
            "search: argument 'limit' must be integer, got True",
        ),
        (
            ToolCall("search", {"query": "x", "page": 1}),
            "search: unknown argument 'page'; write search(query, limit, order)",
        ),
        (
            ToolCall("search", argument="x"),
            "search: takes 3 arguments by name; write search(query, limit, order)",
        ),
        (
            ToolCall("search", status="malformed"),
            "search: malformed call; write search(query, limit, order)",
        ),
    ],
)
def test_a_wrong_call_is_an_answer(call: ToolCall, content: str) -> None:
    assert answer(call) == ToolResult(content, is_error=True)


@pytest.mark.parametrize("status", sorted(set(get_args(CallStatus)) - {"ok", "malformed"}))
def test_only_a_call_that_is_ok_is_run(status: CallStatus) -> None:
    result = answer(ToolCall("search", {"query": "x"}, status=status))
    assert result.is_error
    assert result.content.startswith(f"search: {describe_problem(ToolCall('', status=status))};")
    assert result.content.endswith("; its arguments are: query, limit, order")


def test_a_wrong_call_reads_the_problem_that_its_parser_found() -> None:
    call = ToolCall("search", status="malformed", problem="no opening brace")
    assert answer(call).content == (
        "search: no opening brace; its arguments are: query, limit, order"
    )


def test_a_call_is_answered_by_the_tool_it_names() -> None:
    async def main() -> list[str]:
        tools = (tool(negate), tool(search))
        calls = [
            ToolCall("negate", {"number": 1}),
            ToolCall("abacus", {"number": 1}),
            ToolCall("", status="unclosed"),
        ]
        return [(await answer_call(call, tools)).content for call in calls]

    assert trio.run(main) == [
        "-1",
        "there is no tool 'abacus'; use negate or search",
        "the call is not closed; use negate or search",
    ]


def test_raw_text_goes_to_the_only_parameter() -> None:
    assert answer(ToolCall("negate", argument=" 7 "), negate) == ToolResult("-7")
    assert answer(ToolCall("negate", argument="7.5"), negate).is_error
    assert answer(ToolCall("negate", argument="seven"), negate).content == (
        "negate: argument 'number' must be integer, got 'seven'"
    )


def test_a_tool_without_parameters_takes_an_empty_text() -> None:
    def now() -> list[int]:
        return [12, 30]

    assert answer(ToolCall("now", argument=" "), now) == ToolResult("[12, 30]")
    assert answer(ToolCall("now", argument="x"), now).is_error


def test_tool_error_is_for_the_policy_and_other_exceptions_are_faults() -> None:
    def refuse(reason: str) -> str:
        raise ToolError(reason)

    def crash(reason: str) -> str:
        raise OSError(reason)

    assert answer(ToolCall("refuse", argument="no"), refuse) == ToolResult("no", is_error=True)
    with pytest.raises(OSError, match="disk"):
        answer(ToolCall("crash", argument="disk"), crash)


def test_async_functions_and_threads() -> None:
    async def wait(text: str) -> str:
        await trio.lowlevel.checkpoint()
        return text

    def thread(text: str) -> bool:
        return threading.current_thread() is threading.main_thread()

    async def main() -> tuple[ToolResult, ...]:
        call = ToolCall("f", argument="x")
        in_place, in_thread = tool(thread), tool(thread, in_thread=True)
        return await tool(wait)(call), await in_place(call), await in_thread(call)

    contents = [result.content for result in trio.run(main)]
    assert contents == ["x", "true", "false"]


PATIENCE = 60.0  # seconds that nothing here takes, on any machine


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Set at the test's end; then waits until no thread runs a tool any more."""
    event = threading.Event()
    yield event
    event.set()
    give_up = time.monotonic() + PATIENCE
    while any(thread.name.startswith("tools.") for thread in threading.enumerate()):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_a_deadline_ends_a_tool_that_blocks(release: threading.Event) -> None:
    def block(text: str) -> str:
        release.wait(PATIENCE)
        return text

    async def main() -> bool:
        with trio.move_on_after(0.1) as scope:
            await tool(block, in_thread=True)(ToolCall("block", argument="x"))
        return scope.cancelled_caught

    assert trio.run(main)
    assert not release.is_set()  # it blocks still


def test_tools_that_hang_are_bounded_and_hold_up_nobody_else(release: threading.Event) -> None:
    started = []

    def block(text: str) -> str:
        started.append(text)
        release.wait(PATIENCE)
        return text

    def echo(text: str) -> str:
        return text

    async def hang() -> None:
        await tool(block, in_thread=True)(ToolCall("block", argument="x"))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(THREADS + 10):
                nursery.start_soon(hang)
            while len(started) < THREADS:
                await trio.sleep(0.01)
            assert await trio.to_thread.run_sync(threading.active_count) > THREADS
            nursery.cancel_scope.cancel()

    async def next_run() -> ToolResult:
        return await tool(echo, in_thread=True)(ToolCall("echo", argument="y"))

    async def within_seconds(call: Any) -> Any:
        with trio.fail_after(PATIENCE):
            return await call()

    trio.run(within_seconds, main)
    assert trio.run(within_seconds, next_run) == ToolResult("y")
    assert len(started) == THREADS


def test_a_call_that_misses_its_tools_deadline_is_an_answer(release: threading.Event) -> None:
    def block(text: str) -> str:
        release.wait(PATIENCE)
        return text

    async def wait(text: str) -> str:
        await trio.sleep_forever()
        return text

    async def main() -> list[ToolResult]:
        tools = [
            tool(block, in_thread=True, deadline_seconds=0.05),
            tool(wait, deadline_seconds=0.1),
        ]
        results = [await made(ToolCall(made.name, argument="x")) for made in tools]
        assert (tool_threads().abandoned, tool_threads().abandoned_total) == (1, 1)
        return results

    assert trio.run(main) == [
        ToolResult("block: took more than 0.05 s and was given up", is_error=True),
        ToolResult("wait: took more than 0.1 s and was given up", is_error=True),
    ]


def test_a_tool_in_time_answers_and_a_deadline_from_outside_is_none_of_the_tools() -> None:
    async def wait(text: str) -> str:
        await trio.sleep(float(text))
        return text

    made = tool(wait, deadline_seconds=2.0)

    async def main() -> None:
        assert await made(ToolCall("wait", argument="1")) == ToolResult("1")
        with trio.move_on_after(1.0) as scope:
            await made(ToolCall("wait", argument="5"))
        assert scope.cancelled_caught

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_too_many_tool_calls_that_hang_end_the_run(release: threading.Event) -> None:
    def block(text: str) -> str:
        release.wait(PATIENCE)
        return text

    made = tool(block, in_thread=True, deadline_seconds=0.1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_ABANDONED + 1):
                nursery.start_soon(made, ToolCall("block", argument="x"))

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    (error,) = caught.value.exceptions
    assert isinstance(error, TooManyHungThreads)
    assert "threads of tools hang in calls" in str(error)
    assert "<locals>.block (" in str(error)


@pytest.mark.parametrize(
    ("seconds", "in_thread", "message"),
    [
        (0.0, True, "deadline_seconds of the tool 'negate' must be > 0 and finite, got 0.0"),
        (float("inf"), True, "must be > 0 and finite, got inf"),
        (1.0, False, "nothing can keep the tool 'negate' to its deadline.*set in_thread=True"),
    ],
)
def test_deadlines_that_make_no_sense(seconds: float, in_thread: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tool(negate, in_thread=in_thread, deadline_seconds=seconds)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_the_schema_says_every_default_that_json_has() -> None:
    def paint(
        at: list[int] = [1, 2],  # noqa: B006
        colors: list[Color] = [Color.RED],  # noqa: B006
        options: dict = {"deep": [None]},  # noqa: B006
        layer: int | None = None,
        width: float = float("inf"),
        name: str = ("no", {1}),
    ) -> str:
        return ""

    about = tool(paint)
    defaults = {
        key: value.get("default", ...) for key, value in about.parameters["properties"].items()
    }
    assert defaults == {
        "at": [1, 2],
        "colors": ["red"],
        "options": {"deep": [None]},
        "layer": None,
        "width": ...,
        "name": ...,
    }
    assert about.parameters["required"] == []


def test_an_enum_is_given_by_value_and_taken_as_a_member() -> None:
    def paint(color: Color = Color.BLUE, other: Color | None = None) -> str:
        return f"{color.name}, {other}"

    assert tool(paint).parameters["properties"] == {
        "color": {"enum": ["red", "blue"], "default": "blue"},
        "other": {"anyOf": [{"enum": ["red", "blue"]}, {"type": "null"}], "default": None},
    }
    assert answer(ToolCall("paint", {"color": "red"}), paint).content == "RED, None"
    assert answer(ToolCall("paint", {"color": "RED"}), paint).content == (
        "paint: argument 'color' must be one of 'red', 'blue', got 'RED'"
    )
    assert convert_text("red", Color) is Color.RED


def test_values_of_an_object_are_checked() -> None:
    assert convert({"a": 1}, dict[str, int]) == {"a": 1}
    with pytest.raises(ArgumentError, match="must be integer, got 'b'"):
        convert({"a": "b"}, dict[str, int])


def test_a_decorator_with_and_without_options() -> None:
    @tool
    def one(number: int) -> int:
        return number

    @tool(deadline_seconds=2.0)
    async def two(number: int) -> int:
        return number

    assert (one.name, two.name, two.deadline_seconds) == ("one", "two", 2.0)


def test_a_flood_is_cut_and_says_so() -> None:
    @tool(max_result_characters=5)
    def flood(count: int) -> str:
        if count < 0:
            raise ToolError("no" * 50)
        return "x" * count

    async def main() -> list[str]:
        return [(await flood(ToolCall("flood", {"count": n}))).content for n in (5, 1000, -1)]

    assert trio.run(main) == [
        "xxxxx",
        "xxxxx… (995 more characters are left out)",
        "nonon… (95 more characters are left out)",
    ]
    assert len(answer(ToolCall("f", {"count": 10**6}), lambda_free_flood).content) < 20_000


def lambda_free_flood(count: int) -> str:
    return "x" * count


def test_named_exceptions_are_answers_and_others_are_faults() -> None:
    @tool(errors=(OSError,))
    def read(name: str) -> str:
        raise FileNotFoundError(name) if name else KeyError(name)

    result = trio.run(read, ToolCall("read", {"name": "notes"}))
    assert result == ToolResult("read: FileNotFoundError: notes", is_error=True)
    with pytest.raises(KeyError):
        trio.run(read, ToolCall("read", {"name": ""}))


def test_a_result_that_is_neither_text_nor_json_is_a_fault_that_names_the_tool() -> None:
    def odd() -> Any:
        return {1, 2}

    with pytest.raises(TypeError, match="the tool 'odd' must return text or what JSON has"):
        answer(ToolCall("odd"), odd)


def test_calls_of_a_tool_are_limited_and_those_of_a_turn_run_at_once() -> None:
    now, most = Counter[str](), Counter[str]()

    async def count(name: str) -> str:
        now[name] += 1
        most[name] = max(most[name], now[name])
        await trio.sleep(1.0)
        now[name] -= 1
        return name

    @tool(concurrency=2, deadline_seconds=2.5)
    async def few(number: int) -> str:
        return await count("few")

    @tool
    async def many(number: int) -> str:
        return await count("many")

    async def main() -> list[str]:
        calls = [
            ToolCall(name, {"number": n}, id=f"{name}{n}")
            for n in range(5)
            for name in ("few", "many")
        ]
        return [f"{m.tool_call_id} {m.content}" for m in await answer_calls(calls, (few, many))]

    told = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert most == {"few": 2, "many": 5}
    names = [f"{name}{n}" for n in range(5) for name in ("few", "many")]
    assert [line.split()[0] for line in told] == names
    # Whoever of the five has no place after 2 s; trio starts tasks in any order.
    late = [line for line in told if line.endswith("few: took more than 2.5 s and was given up")]
    assert len(late) == 1


def test_the_first_call_that_fails_is_raised_and_the_others_are_cancelled() -> None:
    @tool
    async def crash(after: int) -> str:
        await trio.sleep(after)
        raise OSError(str(after))

    async def main() -> None:
        calls = [ToolCall("crash", {"after": after}) for after in (9, 1, 5)]
        with pytest.raises(OSError, match="1"):
            await answer_calls(calls, (crash,))
        assert trio.current_time() - began == pytest.approx(1.0)

    clock = trio.testing.MockClock(autojump_threshold=0)
    began = clock.current_time()
    trio.run(main, clock=clock)


@pytest.mark.parametrize("option", ["concurrency", "max_result_characters"])
def test_limits_that_make_no_sense(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} of the tool 'negate' must be >= 1.*got 0"):
        tool(negate, **{option: 0})  # type: ignore[misc]


@pytest.mark.parametrize(
    "hint", [complex, set, int | str, list[complex], bytes, Literal["up", b"down"]]
)
def test_types_that_json_lacks_are_refused_when_the_tool_is_made(hint: Any) -> None:
    with pytest.raises(TypeError, match="must be str, int"):
        json_schema(hint)


def test_every_parameter_needs_a_type() -> None:
    def untyped(x): ...

    def starred(*x: int) -> None: ...

    for function in (untyped, starred):
        with pytest.raises(TypeError, match="needs a type hint for every parameter"):
            tool(function)


@given(Json, st.sampled_from(HINTS))
@settings(max_examples=100)
def test_a_converted_value_converts_to_itself(value: Any, hint: Any) -> None:
    try:
        converted = convert(value, hint)
    except ArgumentError:
        return
    assert converted == value
    assert convert(converted, hint) == converted


@given(st.text() | Json.map(str), st.sampled_from(HINTS))
@settings(max_examples=100)
def test_any_text_is_a_value_or_an_argument_error(text: str, hint: Any) -> None:
    try:
        value = convert_text(text, hint)
    except ArgumentError:
        return
    assert convert(value, hint) == value


def test_deep_huge_or_special_json_is_an_argument_error() -> None:
    for text in ("[" * 100_000, "9" * 400, "1" * 5000, "NaN", "-Infinity", "1e999"):
        with pytest.raises(ArgumentError):
            convert_text(text, float)
