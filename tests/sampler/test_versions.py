"""Which versions live, against a count that starts anew at every question."""

from contextlib import AbstractContextManager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.sampler.versions import LiveVersions

Kinds = st.sampled_from(["publish", "hold", "use", "leave"])


@given(st.lists(st.tuples(Kinds, st.integers(0, 30)), max_size=60))
def test_a_version_is_dropped_once_when_it_is_neither_newest_nor_held_nor_used(
    steps: list[tuple[str, int]],
) -> None:
    dropped: list[int] = []
    versions = LiveVersions(dropped.append)
    versions.publish(0)
    inside: list[tuple[str, int, AbstractContextManager[None]]] = []

    def may_ask() -> list[int]:
        held = {version for kind, version, _ in inside if kind == "hold"}
        return sorted(held | {versions.newest})

    def enter(kind: str, version: int) -> None:
        versions.check(version)
        context = versions.hold(version) if kind == "hold" else versions.use(version)
        context.__enter__()
        inside.append((kind, version, context))

    def leave(index: int) -> None:
        inside.pop(index)[2].__exit__(None, None, None)

    def check() -> None:
        alive = {versions.newest} | {version for _, version, _ in inside}
        assert sorted(dropped) == sorted(set(range(versions.newest + 1)) - alive)
        for version in range(-1, versions.newest + 2):
            if version not in may_ask():
                with pytest.raises(ValueError, match=f"got {version}"):
                    versions.check(version)

    for kind, number in steps:
        if kind == "publish":
            versions.publish(versions.newest + 1)
        elif kind != "leave":
            enter(kind, may_ask()[number % len(may_ask())])
        elif inside:
            leave(number % len(inside))
        check()
    while inside:
        leave(0)
        check()
    assert versions.newest not in dropped


def test_requests_that_name_no_version_keep_none_alive() -> None:
    dropped: list[int] = []
    versions = LiveVersions(dropped.append)
    versions.publish(0)
    with versions.use(None):
        versions.publish(1)
        assert dropped == [0]
    assert dropped == [0]


def test_a_refusal_names_what_is_allowed_and_what_to_do() -> None:
    versions = LiveVersions([].append)
    with pytest.raises(ValueError, match=r"got 3 before the first was; publish, or leave"):
        versions.check(3)
    versions.publish(4)
    with versions.hold(4):
        versions.publish(6)
        message = r"\[4, 6\], got 5; enter hold\(5\) while it is the newest"
        with pytest.raises(ValueError, match=message):
            versions.check(5)
