"""Rewards: numbers by name, or a failure that names the reward and is never a 0."""

import math
from dataclasses import replace

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


def as_closure():
    async def closure(episode):
        return 1.0

    return closure


async def good(episode: EpisodeRecord) -> float:
    await trio.lowlevel.checkpoint()
    return 1.0


def test_rewards_by_name():
    found = score(
        Reward("right", functions.right),
        Reward("later", functions.length_later),
        Reward("good", good, in_loop=True),
    )
    assert found == {"env": 0.5, "right": 1.0, "later": 2.0, "good": 1.0}
    assert all(type(value) is float for value in found.values())


NO_SCORES = {
    "nothing": "it gave None",
    "raises": "ValueError: no such answer",
    "raises_in_a_nursery": "KeyError: 'here'",
    "raises_hidden": "Hidden: <exception str() failed>",
    "raises_flood": "ValueError: xxx",
    "interrupts": "KeyboardInterrupt",
    "leaves": "SystemExit: 0",
    "not_finite": "a reward must be a number from -1e+06 to 1e+06 or None, got nan",
    "infinite": "got -inf",
    "huge": "OverflowError: int too large to convert to float",
    "text": "got '1.0'",
    "complex": "got 1j",
    "bytes": "got b'1'",
    "list": "got [1.0]",
    "lock": "got <unlocked _thread.lock",
}
SCORES = {
    "length_later": 12.0,
    "bool": 1.0,
    "fraction": 0.5,
    "number_of_numpy": 0.5,
    "goes_first": 1e3,
}
COSTS_ITS_PROCESS = {
    "blocks_the_loop": "took more than 2 s",
    "exits": "its process exited with status 0",
    "closes_everything": "its process",
    "forks": 1.0,  # an answer, and what it leaves
    "leaves_a_thread": 2.0,
    "leaves_an_alarm": 2.0,
}


async def outcome_of(scorer, name):
    """Return the score, or the text of the failure, which names the reward."""
    try:
        return (await scorer.score(said(name)))["mine"]
    except RewardFailed as failed:
        return reason(failed)


def reason(failed):
    before, _, why = str(failed).partition(" couldn't be computed: ")
    assert before == "the reward 'mine'"
    assert len(why) < 2000
    assert failed.timed_out is ("took more than" in why)
    return why


def test_what_cannot_be_scored_is_no_zero_and_leaves_its_process_warm():
    async def main():
        scorer = Scorer([Reward("mine", functions.by_answer, concurrency=1)])
        pid = await outcome_of(scorer, "process")
        for name, why in NO_SCORES.items():
            assert why in await outcome_of(scorer, name), name
        for name, value in SCORES.items():
            assert await outcome_of(scorer, name) == value, name
        assert await outcome_of(scorer, "process") == pid

    trio.run(main)


def test_what_costs_its_process_costs_nothing_else():
    async def main():
        scorer = Scorer([Reward("mine", functions.by_answer, deadline_seconds=2.0, concurrency=1)])
        pids = [await outcome_of(scorer, "process")]
        for name, told in COSTS_ITS_PROCESS.items():
            outcome = await outcome_of(scorer, name)
            assert told in outcome if isinstance(told, str) else told == outcome, name
            pids.append(await outcome_of(scorer, "process"))
        assert len(set(pids)) == len(pids)
        with pytest.raises(BaseExceptionGroup) as broken:
            await outcome_of(scorer, "breaks_in_a_nursery")
        assert broken.group_contains(EnvironmentBroken, match="no judge")

    trio.run(main)


def test_a_call_into_c_that_hangs_is_killed():
    reward = Reward("mine", functions.hangs_in_c, deadline_seconds=0.2)
    with pytest.raises(RewardFailed, match=r"took more than 0\.2 s"):
        score(reward)
    assert score(replace(reward, timeout_score=-0.5))["mine"] == -0.5


def test_async_functions_have_deadlines_and_may_raise_groups():
    async def slow(episode):
        await trio.sleep(math.inf)

    async def raising(episode):
        async with trio.open_nursery():
            raise KeyError("here")

    async def hidden(episode):
        raise functions.Hidden

    with pytest.raises(RewardFailed, match=r"took more than 0\.01 s") as caught:
        score(Reward("slow", slow, deadline_seconds=0.01, in_loop=True))
    assert caught.value.timed_out
    with pytest.raises(RewardFailed, match="KeyError: 'here'"):
        score(Reward("raising", raising, in_loop=True))
    with pytest.raises(RewardFailed, match="Hidden: <exception str"):
        score(Reward("hidden", hidden, in_loop=True))


def test_what_a_missed_deadline_scores_of_groups_and_only_that():
    async def slow(episodes):
        await trio.sleep(1)

    async def broken(episodes):
        raise KeyError("x")

    async def compared(function):
        late = {"of": "group", "deadline_seconds": 0.01, "timeout_score": 0.25, "in_loop": True}
        return await Scorer([Reward("mine", function, **late)]).compare([said("a"), said("b")])

    assert trio.run(compared, slow) == [{"mine": 0.25}] * 2
    assert all(isinstance(each, RewardFailed) for each in trio.run(compared, broken))


def test_the_first_failed_reward_is_named_whatever_ends_first():
    async def slowly(episode):
        await trio.sleep(0.05)

    async def at_once(episode):
        raise ValueError

    with pytest.raises(RewardFailed, match="'slowly'"):
        score(Reward("slowly", slowly, in_loop=True), Reward("at_once", at_once, in_loop=True))


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
        scorer = Scorer([Reward("counting", counting, concurrency=3, in_loop=True)])
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


def test_a_reward_of_groups_sees_all_members_and_may_leave_some_out():
    scores = {"mean": [2.0, -2.0], "skip": [1.0, None], "iterator": [0.0, 1.0]}
    failures = {
        "endless": "a list of 2 numbers, one for each member, got [1.0, 1.0, 1.0]",
        "few": "got [1.0]",
        "nothing": "it gave None",
        "number": "got 1.0",
        "text": "got '12'",
        "dict": "got {0: 1.0, 1: 2.0}",
        "nan": "a reward must be a number",
    }

    async def main():
        scorer = Scorer([Reward("mine", functions.by_first_answer, of="group", concurrency=1)])
        for name, values in scores.items():
            found = await scorer.compare([said(name), said("")])
            assert scorer.compares
            assert [None if isinstance(f, RewardFailed) else f["mine"] for f in found] == values
        for name, why in failures.items():
            for failed in await scorer.compare([said(name), said("")]):
                assert isinstance(failed, RewardFailed)
                assert why in str(failed), name

    trio.run(main)


# Weights -----------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(["env", "a", "b"]), st.floats(-10, 10)))
def test_the_total_is_the_weighted_sum(weights):
    scorer = Scorer([Reward("a", functions.length, weight=2.0), Reward("b", good)], weights)
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
        ([Reward("a", as_closure())], {}, "top level of a module"),
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
        ("timeout_score", math.inf), ("timeout_score", 1e7),
        ("in_loop", True),
    ],
)  # fmt: skip
def test_values_of_a_reward(field, value):
    with pytest.raises(ValueError, match=f"{field} of the reward .* must be .*, got"):
        Reward(**{"name": "mine", "function": functions.length, field: value})
