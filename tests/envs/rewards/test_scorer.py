"""Rewards: numbers by name, or a failure that names the reward and is never a 0."""

import math
import os

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import EnvironmentBroken, EpisodeRecord, Message, Reward, Task
from headrace.envs.rewards import RewardFailed, Scorer
from tests.fakes import reward_functions as functions


def said(text: str, **fields: float) -> EpisodeRecord:
    messages = (Message("user", "?"), Message("assistant", text))
    return EpisodeRecord(Task("t", {"answer": "42"}), messages, **fields)


def score(*rewards: Reward, text: str = "42") -> dict[str, float]:
    return trio.run(Scorer(rewards).score, said(text, env_reward=0.5))


async def good(episode: EpisodeRecord) -> float:
    await trio.lowlevel.checkpoint()
    return 1.0


def as_async(function):
    """Return the same for the run's own loop, which starts no process."""

    async def called(episode):
        await trio.lowlevel.checkpoint()
        return function(episode)

    return called


def test_rewards_by_name():
    found = score(
        Reward("right", functions.right), Reward("length", functions.length), Reward("good", good)
    )
    assert found == {"env": 0.5, "right": 1.0, "length": 2.0, "good": 1.0}
    assert all(type(value) is float for value in found.values())


@pytest.mark.parametrize(
    ("function", "why", "timed_out"),
    [
        (as_async(functions.nothing), "it gave None", False),
        (functions.raises, "ValueError: no such answer", False),
        (functions.hangs_in_c, "took more than 0.2 s", True),
        (functions.exits, "its process exited with status 0", False),
        (as_async(functions.not_finite), "a reward must be a number from -1e+06 to 1e+06", False),
        (as_async(functions.text), "got '1.0'", False),
    ],
)
def test_what_cannot_be_scored_is_no_zero(function, why, timed_out):
    with pytest.raises(RewardFailed) as caught:
        score(Reward("mine", function, deadline_seconds=0.2))
    assert str(caught.value).startswith("the reward 'mine' couldn't be computed: ")
    assert why in str(caught.value)
    assert caught.value.timed_out is timed_out


def test_async_functions_have_deadlines_and_may_raise_groups():
    async def slow(episode):
        await trio.sleep(math.inf)

    async def raising(episode):
        async with trio.open_nursery():
            raise KeyError("here")

    with pytest.raises(RewardFailed, match=r"took more than 0\.01 s") as caught:
        score(Reward("slow", slow, deadline_seconds=0.01))
    assert caught.value.timed_out
    with pytest.raises(RewardFailed, match="KeyError: 'here'"):
        score(Reward("raising", raising))


def test_the_first_failed_reward_is_named_whatever_ends_first():
    async def slowly(episode):
        await trio.sleep(0.05)

    async def at_once(episode):
        raise ValueError

    with pytest.raises(RewardFailed, match="'slowly'"):
        score(Reward("slowly", slowly), Reward("at_once", at_once))


def test_a_process_is_warm_until_something_is_wrong_with_it():
    async def main():
        scorer = Scorer([Reward("process", functions.process, concurrency=1)])
        first = await scorer.score(said(""))
        assert first == await scorer.score(said(""))
        assert first["process"] != os.getpid()
        mixed = Scorer([Reward("mixed", functions.raises_on_bad, concurrency=1)])
        before = await mixed.score(said("fine"))
        with pytest.raises(RewardFailed, match="KeyError"):
            await mixed.score(said("bad"))
        assert before == await mixed.score(said("fine"))
        bad = Scorer([Reward("bad", functions.fails_on_bad, concurrency=1)])
        with pytest.raises(RewardFailed, match="status 3"):
            await bad.score(said("bad"))
        assert (await bad.score(said("fine")))["bad"] == 1.0

    trio.run(main)


def test_a_process_with_a_thread_left_behind_is_not_used_again():
    async def main():
        scorer = Scorer([Reward("leaves", functions.leaves_a_thread, concurrency=1)])
        return [(await scorer.score(said("")))["leaves"] for _ in range(2)]

    first, second = trio.run(main)
    assert first != second


def test_calls_of_an_async_function_are_limited():
    most = now = 0

    async def counting(episode):
        nonlocal most, now
        now += 1
        most = max(most, now)
        await trio.lowlevel.checkpoint()
        now -= 1
        return 0.0

    async def main():
        scorer = Scorer([Reward("counting", counting, concurrency=3)])
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(scorer.score, said(""))

    trio.run(main)
    assert most == 3


def test_a_module_that_fails_to_be_imported_ends_the_run():
    reward = Reward("broken", functions.length, start_deadline_seconds=0.001, concurrency=1)

    async def main():
        scorer = Scorer([reward])
        for _ in range(2):
            with pytest.raises(RewardFailed, match="couldn't be started"):
                await scorer.score(said(""))
        with pytest.raises(BaseExceptionGroup) as caught:
            await scorer.score(said(""))
        assert isinstance(caught.value.exceptions[0], EnvironmentBroken)

    trio.run(main)


# Groups ------------------------------------------------------------------------------------


def compare(function, *texts):
    scorer = Scorer([Reward("mine", function, of="group")])
    assert scorer.compares
    return trio.run(scorer.compare, [said(text) for text in texts])


def test_a_reward_of_groups_sees_all_members():
    assert compare(functions.above_mean, "", "aa", "aaaa") == [
        {"mine": -2.0}, {"mine": 0.0}, {"mine": 2.0},
    ]  # fmt: skip


def test_a_member_may_be_left_out_and_a_wrong_list_fails_all():
    first, second = compare(functions.skips_empty, "", "a")
    assert isinstance(first, RewardFailed)
    assert second == {"mine": 2.0}
    failed = compare(functions.too_few, "a", "b")
    assert [type(each) for each in failed] == [RewardFailed, RewardFailed]
    assert "a list of 2 numbers" in str(failed[0])


# Weights -----------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["env", "a", "b"]), st.floats(-10, 10)))
def test_the_total_is_the_weighted_sum(weights):
    scorer = Scorer([Reward("a", good, weight=2.0), Reward("b", good)], weights)
    expected = {"env": 1.0, "a": 2.0, "b": 1.0, **weights}
    assert scorer.weights == expected
    values = {"env": 1.0, "a": 10.0, "b": 100.0}
    assert scorer.total(values) == pytest.approx(
        sum(expected[name] * value for name, value in values.items())
    )


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ([Reward("a", good), Reward("a", good)], {}, "different names"),
        ([Reward("a", good)], {"b": 1.0}, "one of env, a; got b=1.0"),
        ([Reward("a", good)], {"a": math.inf}, "must be finite"),
        ([Reward("a", lambda episode: 1.0)], {}, "top level of a module"),
    ],
)
def test_rewards_that_contradict_each_other(rewards, weights, message):
    with pytest.raises(ValueError, match=message):
        Scorer(rewards, weights)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a-b"), ("name", "env"), ("weight", math.nan), ("of", "all"),
        ("deadline_seconds", 0.0), ("start_deadline_seconds", math.inf), ("concurrency", -1),
    ],
)  # fmt: skip
def test_values_of_a_reward(field, value):
    with pytest.raises(ValueError, match=f"{field} of the reward .* must be .*, got"):
        Reward(**{"name": "mine", "function": good, field: value})
