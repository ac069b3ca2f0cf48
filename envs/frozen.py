"""Frozen records that are made in half the time.

A frozen dataclass refuses assignment, so its `__init__` sets each field by a call of
`object.__setattr__`. An episode of one turn makes more than thirty fields, and these calls were
3 % of all that the host does for it. What can't be assigned can still be put into an instance's
own dictionary.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import update_wrapper
from inspect import Parameter, signature
from typing import Any, TypeVar

T = TypeVar("T")


def made_quickly(cls: type[T]) -> type[T]:
    """Give a frozen dataclass without slots an `__init__` that fills the instance's dictionary.

    Its parameters, their defaults and `__post_init__` stay what they were, and so does all else.

    Raises:
      TypeError: for a class that has slots, or with `KW_ONLY`, `InitVar` or `field(init=False,
        default_factory=...)`, which no record made every turn has.

    Example:
      >>> from dataclasses import dataclass
      >>> @made_quickly
      ... @dataclass(frozen=True)
      ... class Point:
      ...     x: int
      ...     y: int = 0
      >>> Point(1)
      Point(x=1, y=0)
    """
    slow: Any = cls.__init__
    given = signature(slow).parameters
    _check(cls, given)
    names: dict[str, Any] = {}  # what the code refers to
    lines = ["_own = self.__dict__"]
    for field in fields(cls):  # type: ignore[arg-type]  # it is a dataclass
        name = value = field.name
        if not field.init:
            continue
        if field.default_factory is not MISSING:
            names |= {f"_new_{name}": field.default_factory, f"_no_{name}": given[name].default}
            value = f"_new_{name}() if {name} is _no_{name} else {name}"
        lines.append(f"_own[{name!r}] = {value}")
    lines += ["self.__post_init__()"] * ("__post_init__" in dir(cls))
    exec(f"def __init__({', '.join(given)}):\n " + "\n ".join(lines), names)
    names["__init__"].__defaults__ = slow.__defaults__
    cls.__init__ = update_wrapper(names["__init__"], slow)  # type: ignore[method-assign]
    return cls


def _check(cls: type, given: Mapping[str, Parameter]) -> None:
    plain = [name for name, each in given.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    own = [each.name for each in fields(cls) if each.init or each.default_factory is not MISSING]
    if plain != ["self", *own] or "__slots__" in vars(cls):
        raise TypeError(f"{cls.__name__} can't be made quickly; see made_quickly")
