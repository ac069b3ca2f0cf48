"""Calls written as Python: `f(a='x', b=2)`, several in a list or one a line.

Invariant: literals only, by name only; nothing is evaluated.
"""

import ast
import re
import warnings
from typing import Any

from ..reading import (
    CallFault,
    CallLimits,
    CallText,
    Context,
    Draft,
    check_value,
    unique,
)

# Escapes of which Python warns, such as "\d", and which it keeps as text.
_ODD_ESCAPE = re.compile(r"\\(?:[^\\'\"abfnrtvxuUN0-7\n]|[4-7][0-7]{2})")


def read_pythonic(call: CallText, context: Context) -> list[Draft]:
    """Read calls of functions whose arguments are literals."""
    nodes = _expressions(context.symbols.text(call.raw).strip())
    if not nodes:
        raise CallFault("malformed", "there is no call")
    return [_draft(node, context.limits) for node in nodes]


def _expressions(text: str) -> list[ast.expr]:
    try:
        module = _parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CallFault("malformed", "the call is not a Python expression") from None
    found: list[ast.expr] = []
    for statement in module.body:
        if not isinstance(statement, ast.Expr):
            raise CallFault("malformed", "only calls of functions are understood")
        value = statement.value
        found += value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
    return found


def _parse(text: str) -> ast.Module:
    if not _ODD_ESCAPE.search(text):
        return ast.parse(text)
    with warnings.catch_warnings():  # of all threads: so only where there would be a warning
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _draft(node: ast.expr, limits: CallLimits) -> Draft:
    if not isinstance(node, ast.Call):
        raise CallFault("malformed", "only calls of functions are understood")
    name = _name(node.func)
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        problem = "arguments must be given by name"
        return Draft(name, status="bad_arguments", problem=problem)
    try:
        pairs = ((each.arg or "", _literal(each.value, limits)) for each in node.keywords)
        arguments = unique(pairs)
        check_value(arguments, limits)
    except CallFault as fault:
        return fault.named(name).draft()
    return Draft(name, arguments)


def _name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise CallFault("missing_name", "a call must begin with the tool's name")
    return ".".join((node.id, *reversed(parts)))


def _literal(node: ast.expr, limits: CallLimits, depth: int = 1) -> Any:
    if depth > limits.max_depth + 1:
        raise CallFault("over_limit", f"nested more than {limits.max_depth} deep")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item, limits, depth + 1) for item in node.elts]
    if isinstance(node, ast.Dict):
        items = zip(node.keys, node.values, strict=True)
        return unique((_key(key), _literal(value, limits, depth + 1)) for key, value in items)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | None):
        return node.value
    raise CallFault("bad_arguments", "the arguments must be literals")


def _number(node: ast.expr) -> float:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise CallFault("bad_arguments", "the arguments must be literals")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise CallFault("bad_arguments", "the keys of a dict must be strings")
