"""A follower does what process 0 does: shown in one process, message by message."""

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import chex
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.errors import HeadraceError, StageFailed, ours_in
from headrace.pipeline.models.model import decoder_model
from headrace.pipeline.processes import Processes
from headrace.pipeline.processes.calls import Calls
from headrace.pipeline.processes.channel import Follower, Leader, ProcessGone
from headrace.pipeline.sampler.service import NativeSampler
from headrace.pipeline.sampling import Sampling
from headrace.pipeline.types import Int32s
from tests.processes.test_train import headrace
from tests.sampler.helpers import (
    CONFIG,
    MODEL,
    VOCAB,
    make_request,
    native_programs,
    sampler_params,
)


class Tape:
    """What process 0 tells, as it goes over the network."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []

    def tell(self, message: tuple[str, tuple[Any, ...]]) -> None:
        self._messages.append(pickle.dumps(message))

    def hear(self, seconds: float | None = None) -> tuple[str, tuple[Any, ...]]:
        if not self._messages:
            raise TimeoutError
        message: tuple[str, tuple[Any, ...]] = pickle.loads(self._messages.pop(0))
        return message


def native(calls: Calls) -> tuple[NativeSampler, Callable[[int], None]]:
    """A sampler, and what lays weights ready in every process."""
    model = decoder_model(MODEL, VOCAB)
    sampler = NativeSampler(CONFIG, model, programs=native_programs(), calls=calls)

    def bring(version: int) -> None:
        sampler.bring(sampler_params(version), version)

    return sampler, calls.add("bring", bring)


def even_only(sampled: Int32s) -> range:
    return range(len(sampled) % 2, VOCAB, 2)


def refuse(sampled: Int32s) -> range:
    raise LookupError("no token fits")


CONSTRAINTS = {"free": None, "even": even_only, "refused": refuse}
Steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*CONSTRAINTS]), st.integers(0, 99)),
        st.tuples(st.just("cancelled"), st.integers(0, 99)),
        st.tuples(st.just("publish"), st.just(0)),
        st.tuples(st.just("wait"), st.integers(0, 5)),
    ),
    max_size=25,
)


async def lead(
    sampler: NativeSampler, bring: Callable[[int], None], steps: list[tuple[str, int]]
) -> None:
    async def sample(seed: int, kind: str) -> None:
        sampling = Sampling(constraint=CONSTRAINTS.get(kind))
        with trio.move_on_after(0.01 if kind == "cancelled" else 30):
            try:
                await sampler.sample(replace(make_request(seed), sampling=sampling))
            except LookupError:
                assert kind == "refused"

    async def publish(version: int) -> None:
        await sampler.device.run(partial(bring, version))
        await sampler.publish(sampler_params(version), version)

    async with trio.open_nursery() as stages:
        await stages.start(sampler.serve)
        await publish(0)
        async with trio.open_nursery() as nursery:
            for kind, number in steps:
                if kind == "publish":
                    await publish(sampler.policy_version + 1)
                elif kind == "wait":
                    await trio.sleep(number * 1e-3)
                else:
                    nursery.start_soon(sample, number, kind)
        stages.cancel_scope.cancel()


@settings(max_examples=10)
@given(Steps)
def test_a_sampler_that_follows_ends_as_the_one_that_leads(steps: list[tuple[str, int]]) -> None:
    tape = Tape()
    leading, following = Calls(tell=tape.tell), Calls(hear=tape.hear)
    sampler, bring = native(leading)
    trio.run(lead, sampler, bring, steps)
    leading.end()

    other, _ = native(following)
    following.follow()
    times = {"busy_seconds": 0.0, "constraint_seconds": 0.0}
    assert replace(other.statistics(), **times) == replace(sampler.statistics(), **times)
    loaded, same = other._engine._loaded, sampler._engine._loaded
    assert loaded is not None
    assert same is not None
    chex.assert_trees_all_equal(loaded.state, same.state)


def test_what_fails_in_process_0_fails_in_all_of_them_and_goes_on() -> None:
    tape = Tape()
    leading, following = Calls(tell=tape.tell), Calls(hear=tape.hear)
    halves: list[float] = []

    def halve(number: float) -> float:
        halves.append(1 / number)
        return halves[-1]

    led = leading.add("halve", halve)
    following.add("halve", halve)
    with pytest.raises(ZeroDivisionError):
        led(0)
    led(4)
    leading.end()
    following.follow()
    assert halves == [0.25, 0.25]


def test_what_fails_in_one_process_only_ends_it() -> None:
    def fail() -> None:
        raise OSError("no room")

    tape = Tape()
    leading, following = Calls(tell=tape.tell), Calls(hear=tape.hear)
    leading.add("write", lambda: None)()
    leading.end()
    following.add("write", fail)
    with pytest.raises(StageFailed, match="'write' failed: OSError: no room"):
        following.follow()

    led = leading.add("read", fail)
    with pytest.raises(OSError, match="no room"):
        led()
    other = Calls(hear=tape.hear)
    other.add("read", lambda: None)
    with pytest.raises(
        HeadraceError, match="differ: in process 0 'read' failed: OSError: no room"
    ):
        other.follow()


def test_a_follower_that_fails_is_not_kept_by_a_process_0_that_waits_for_it() -> None:
    tape = Tape()
    leading, following = Calls(tell=tape.tell), Calls(hear=tape.hear)
    leading.add("divide", lambda: None)()  # and tells nothing more

    following.add("divide", lambda: 1 / 0)
    with pytest.raises(StageFailed, match="'divide' failed: ZeroDivisionError"):
        following.follow()


def test_a_name_is_given_once() -> None:
    calls = Calls()
    calls.add("once", print)
    with pytest.raises(ValueError, match="a new one, got 'once'"):
        calls.add("once", print)


PASSWORD = b"p" * 32


def connected(followers: int) -> tuple[Leader, list[Follower]]:
    leader = Leader(followers, PASSWORD)
    found: dict[int, Follower] = {}

    def connect(number: int) -> None:
        found[number] = Follower("127.0.0.1", leader.port, number=number, password=PASSWORD)

    threads = [threading.Thread(target=connect, args=(n + 1,)) for n in range(followers)]
    for thread in threads:
        thread.start()
    leader.accept()
    for thread in threads:
        thread.join()
    return leader, [found[number] for number in leader.followers]


def test_messages_arrive_in_order_and_an_end_is_noticed() -> None:
    leader, followers = connected(2)
    assert leader.followers == [1, 2]
    big = bytes(10_000_000)
    for message in (("a", (1,)), ("b", (big,))):
        leader.tell(message)
        assert [follower.hear() for follower in followers] == [message] * 2
    followers[0].give_reason("out of memory")
    assert leader.first_end() == (1, "out of memory")
    leader.hang_up(0)
    with pytest.raises(ProcessGone, match="process 0 has failed or gone"):
        followers[1].hear()
    for follower in followers:
        follower.close()


def test_the_end_of_a_follower_is_the_news_of_process_0() -> None:
    leader, (follower,) = connected(1)
    processes = Processes(0, 2, Calls(tell=leader.tell), leader=leader)
    follower.give_reason("StageFailed: no room")
    told = processes.fail(OSError("gloo: connection closed by peer"))
    assert str(told) == "stage 'process 1' failed: ProcessGone: StageFailed: no room"
    assert list(ours_in(told)) == [told]
    follower.close()


def test_an_error_of_process_0_is_the_news_where_all_others_are_there() -> None:
    leader, (follower,) = connected(1)
    processes = Processes(0, 2, Calls(tell=leader.tell), leader=leader)
    own = OSError("no room")
    ending = threading.Thread(target=_end_with, args=(follower,))
    ending.start()
    assert processes.fail(own) is own
    ending.join()


def _end_with(follower: Follower) -> None:
    """End as a process does when process 0 has."""
    with pytest.raises(ProcessGone):
        follower.hear()
    Processes(1, 2, follower=follower).fail(ProcessGone("process 0 has gone"))
    follower.close()


def test_a_stranger_is_not_let_in() -> None:
    leader = Leader(1, PASSWORD)

    def connect() -> None:
        with pytest.raises(ProcessGone, match="can't reach process 0"):
            Follower("127.0.0.1", leader.port, number=1, password=b"wrong")
        known = Follower("127.0.0.1", leader.port, number=1, password=PASSWORD)
        assert known.hear() == ("hello", ())
        known.close()

    thread = threading.Thread(target=connect)
    thread.start()
    leader.accept()
    leader.tell(("hello", ()))
    thread.join()
    leader.hang_up(0)


def test_no_cluster_to_join_is_said(tmp_path: Path) -> None:
    train = ["train", "guess_number", "--mesh.coordinator", "auto"]
    process = headrace(*train, devices=1, said=tmp_path / "said")
    assert process.wait(60) == 2
    assert "JAX finds no others at 'auto'" in (tmp_path / "said").read_text()
