"""The evaluator against Python's own arithmetic, and against hostile text."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.envs.arithmetic import MAX_DEPTH, MAX_NUMBER, ArithmeticTextError, evaluate

NUMBERS = st.integers(0, 10**6).map(str)
OPERATORS = st.sampled_from(["+", "-", "*", "//", " + ", " - ", " * ", " // "])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, OPERATORS, inner).map("".join),
        inner.map("({})".format),
        inner.map("-{}".format),
        inner.map("+{}".format),
    )


EXPRESSIONS = st.recursive(NUMBERS, _larger, max_leaves=8)


@given(EXPRESSIONS)
@settings(max_examples=100)
def test_agrees_with_python(text: str) -> None:
    assume(len(text) <= 200)
    try:
        expected = eval(text)  # the oracle; the text comes from the strategy above
    except ZeroDivisionError:
        with pytest.raises(ArithmeticTextError, match="division by zero"):
            evaluate(text)
        return
    assume(abs(expected) < 10**6 or text.count("*") < 4)  # else a number on the way is too large
    assert evaluate(text) == expected


@given(st.one_of(st.text(), st.text(alphabet="0123456789+-*/() x.", max_size=250)))
@settings(max_examples=100)
def test_any_text_gives_a_bounded_integer_or_its_own_error(text: str) -> None:
    try:
        value = evaluate(text)
    except ArithmeticTextError:
        return
    assert abs(value) <= MAX_NUMBER


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 2",
        "1+",
        "*1",
        "1/2",
        "2**3",
        "(1",
        "1)",
        "()",
        "1(2)",
        "٣",  # a digit for str.isdigit, not for us
        "1_000",
        "0x1",
        "__import__('os')",
        "9" * 31,
        "9" * 201,
        "*".join(["999999"] * 6),
        "(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1),
        "(" * 200,
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(ArithmeticTextError):
        evaluate(text)


def test_the_limits_themselves_are_allowed() -> None:
    assert evaluate("9" * 30) == MAX_NUMBER
    assert evaluate("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH) == 1
    assert evaluate("-" * 199 + "1") == -1
    assert evaluate("007 +1 ") == 8
