"""A record that is made quickly differs from one that isn't in nothing but that."""

import copy
import pickle
from dataclasses import (
    KW_ONLY,
    FrozenInstanceError,
    InitVar,
    dataclass,
    field,
    make_dataclass,
    replace,
)  # fmt: skip
from inspect import signature

import pytest

from headrace.envs.frozen import made_quickly


@dataclass(frozen=True)
class Plain:
    a: int
    b: dict[str, int] = field(default_factory=dict)
    c: int = 3
    total: int = field(init=False)

    def __post_init__(self):
        if self.a < 0:
            raise ValueError("a must be >= 0")
        vars(self)["total"] = self.a + self.c


@made_quickly
@dataclass(frozen=True)
class Quick(Plain):
    """The same; the `__post_init__` is inherited."""


CALLS = [
    ((1,), {}),
    ((1, {"x": 1}, 5), {}),
    ((), {"c": 7, "a": 2}),
    ((1,), {"b": {}}),
    ((-1,), {}),
    ((), {}),
    ((1, {}, 3, 4), {}),
    ((1,), {"a": 1}),
    ((1,), {"d": 1}),
]


def made(cls, args, kwargs):
    try:
        return vars(cls(*args, **kwargs))
    except (TypeError, ValueError) as error:
        return str(error).removeprefix(cls.__name__)


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_equal_calls_make_equal_fields_or_equal_errors(args, kwargs):
    assert made(Quick, args, kwargs) == made(Plain, args, kwargs)


def test_instances_are_frozen_equal_and_copied_as_ever():
    one = Quick(1)
    with pytest.raises(FrozenInstanceError):
        one.a = 2
    with pytest.raises(FrozenInstanceError):
        del one.a
    assert one == Quick(1) != Quick(2)
    assert signature(Quick).parameters.keys() == signature(Plain).parameters.keys()
    assert repr(one) == repr(Plain(1)).replace("Plain", "Quick")
    assert one.b is not Quick(1).b  # a default of its own
    assert replace(one, a=5) == Quick(5)
    assert copy.copy(one) == pickle.loads(pickle.dumps(one)) == one


def test_names_of_fields_are_free():
    kinds = [("own", int), ("new_b", int), ("no_b", int), ("b", list, field(default_factory=list))]
    record = made_quickly(make_dataclass("Record", kinds, frozen=True))
    assert vars(record(1, 2, 3)) == {"own": 1, "new_b": 2, "no_b": 3, "b": []}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ([("a", int)], {"kw_only": True}),
        ([("a", int), ("_", KW_ONLY), ("b", int, 3)], {}),
        ([("a", int), ("b", InitVar[int])], {}),
        ([("a", int), ("b", list, field(init=False, default_factory=list))], {}),
        ([("a", int)], {"slots": True}),
        ([("self", int)], {}),
    ],
)
def test_what_would_be_made_wrongly_is_refused(fields, options):
    with pytest.raises(TypeError, match="Record can't be made quickly"):
        made_quickly(make_dataclass("Record", fields, frozen=True, **options))
