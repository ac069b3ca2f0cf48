"""Evaluate integer arithmetic from untrusted text, without `eval`.

Invariant: any text gives an integer or an `ArithmeticTextError`, in bounded time and memory.
The text's length, the depth of its brackets and the size of every number are limited.
"""

import re

MAX_CHARACTERS = 200
MAX_DEPTH = 20
MAX_DIGITS = 30
MAX_NUMBER = 10**MAX_DIGITS - 1

_TOKEN = re.compile(r"\s*([0-9]+|//|[-+*()])", re.ASCII)
_END = ""


class ArithmeticTextError(ValueError):
    """The text is no expression, divides by zero, or exceeds a limit."""


def evaluate(text: str) -> int:
    """Return the value of an expression of integers, `+ - * //`, signs and brackets.

    The rules are Python's: products before sums, from left to right, floor division.

    Args:
      text: at most 200 characters, with brackets at most 20 deep and every number, also on
        the way, of at most 30 digits. Leading zeros are allowed.

    Raises:
      ArithmeticTextError: for anything else; the message says what is wrong.

    Example:
      >>> evaluate("2*(3+4)//5")
      2
      >>> evaluate("-7//2")
      -4
    """
    tokens = _tokens(text)
    value = _sum(tokens, 0)
    if tokens[-1] != _END:
        raise ArithmeticTextError(f"unexpected {tokens[-1]!r}")
    return value


def _tokens(text: str) -> list[str]:
    """Return the tokens in reverse order, so that the next one is popped from the end."""
    if len(text) > MAX_CHARACTERS:
        raise ArithmeticTextError(f"longer than {MAX_CHARACTERS} characters: {len(text)}")
    text = text.rstrip()
    tokens, position = [], 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ArithmeticTextError(f"unexpected {text[position]!r}")
        tokens.append(found.group(1))
        position = found.end()
    return [_END, *reversed(tokens)]


def _sum(tokens: list[str], depth: int) -> int:
    value = _product(tokens, depth)
    while tokens[-1] in ("+", "-"):
        sign = 1 if tokens.pop() == "+" else -1
        value = _limited(value + sign * _product(tokens, depth))
    return value


def _product(tokens: list[str], depth: int) -> int:
    value = _factor(tokens, depth)
    while tokens[-1] in ("*", "//"):
        operator, operand = tokens.pop(), _factor(tokens, depth)
        if operator == "*":
            value = _limited(value * operand)
        elif operand == 0:
            raise ArithmeticTextError("division by zero")
        else:
            value //= operand
    return value


def _factor(tokens: list[str], depth: int) -> int:
    sign = 1
    while tokens[-1] in ("+", "-"):
        sign = sign if tokens.pop() == "+" else -sign
    token = tokens[-1]
    if token == "(":
        return sign * _bracket(tokens, depth + 1)
    if not token.isdigit():
        raise ArithmeticTextError(f"expected a number, got {token!r}" if token else "incomplete")
    return sign * _limited(int(tokens.pop()))


def _bracket(tokens: list[str], depth: int) -> int:
    if depth > MAX_DEPTH:
        raise ArithmeticTextError(f"brackets deeper than {MAX_DEPTH}")
    tokens.pop()
    value = _sum(tokens, depth)
    if tokens[-1] != ")":
        raise ArithmeticTextError("a bracket is not closed")
    tokens.pop()
    return value


def _limited(value: int) -> int:
    if abs(value) > MAX_NUMBER:
        raise ArithmeticTextError(f"a number has more than {MAX_DIGITS} digits")
    return value
