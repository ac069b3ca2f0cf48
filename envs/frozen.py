"""Frozen records that are made in half the time.

A frozen dataclass refuses assignment, so its `__init__` sets each field by a call of
`object.__setattr__`. An episode of one turn makes more than thirty fields, and these calls were
3 % of all that the host does for it. What can't be assigned can still be put into an instance's
own dictionary.
"""

from dataclasses import MISSING, fields
from functools import update_wrapper
from inspect import signature
from typing import Any, TypeVar

T = TypeVar("T")


def made_quickly(cls: type[T]) -> type[T]:
    """Give a frozen dataclass without slots an `__init__` that fills the instance's dictionary.

    Its parameters, their defaults and `__post_init__` stay what they were, and so does all else.

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
    names: dict[str, Any] = {}  # what the code refers to
    lines = ["own = self.__dict__"]
    for field in fields(cls):  # type: ignore[arg-type]  # it is a dataclass
        name = value = field.name
        if not field.init:
            continue
        if field.default_factory is not MISSING:
            names |= {f"new_{name}": field.default_factory, f"no_{name}": given[name].default}
            value = f"new_{name}() if {name} is no_{name} else {name}"
        lines.append(f"own[{name!r}] = {value}")
    lines += ["self.__post_init__()"] * ("__post_init__" in dir(cls))
    exec(f"def __init__({', '.join(given)}):\n " + "\n ".join(lines), names)
    names["__init__"].__defaults__ = slow.__defaults__
    cls.__init__ = update_wrapper(names["__init__"], slow)  # type: ignore[method-assign]
    return cls
