"""Law 6: a group is used whole or not at all, by the stated rule."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Rollout
from headrace.pipeline.rollout.group import Flight, identify, run_group
from tests.fakes.env import Books, FakeEnv
from tests.rollout.test_episode import RENDERER, Script, turn

GROUP_SIZE = 4


def run(failing_tries: dict[int, int], **config):
    """Run a group in which the n-th environment to be opened belongs to try n.

    `failing_tries[i] = k`: the i-th opened environment of a member fails for its first k tries.
    """
    books = Books()
    tries: dict[int, int] = {}

    async def hook(call, task, step):
        await trio.sleep(1.0)

    class Failing(FakeEnv):
        async def reset(self, task, seed):
            member = members[seed]
            tries[member] = tries.get(member, 0) + 1
            if tries[member] <= failing_tries.get(member, 0):
                raise OSError(f"member {member}")
            return await super().reset(task, seed)

    members = {
        identify(7, index=3, member=member, attempt=attempt).env_seed: member
        for member in range(GROUP_SIZE)
        for attempt in range(9)
    }
    rollout = Rollout(
        lambda: Failing(books, (), hook),
        RENDERER,
        Script(turn("1")),
        RolloutConfig(group_size=GROUP_SIZE, **config),
    )

    async def main():
        return await run_group(rollout, Task("t"), index=3, seed=7, flight=flight)

    flight = Flight()
    outcome = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert books.balanced
    assert flight.episodes == 0
    assert flight.failures.total() == len(outcome.failures)
    return outcome, tries


def test_conformance_23_one_of_n_fails_under_each_policy():
    outcome, tries = run({2: 2}, failure="retry", max_retries=2)
    assert len(outcome.group.trajectories) == GROUP_SIZE
    assert len(outcome.failures) == 2
    assert tries == {0: 1, 1: 1, 2: 3, 3: 1}

    outcome, tries = run({2: 9}, failure="retry", max_retries=2)
    assert outcome.group is None
    assert tries[2] == 3  # bounded

    outcome, _ = run({2: 9}, failure="survivors", min_group_size=3)
    assert len(outcome.group.trajectories) == 3

    outcome, _ = run({1: 9, 2: 9}, failure="survivors", min_group_size=3)
    assert outcome.group is None

    outcome, _ = run({2: 9}, failure="drop")
    assert outcome.group is None


def test_law_16_a_cancelled_group_makes_no_further_try_though_closing_fails():
    books = Books()

    async def hook(call, task, step):
        if call == "close":
            raise OSError("still in use")
        await trio.sleep(1.0)

    async def main():
        rollout = Rollout(
            lambda: FakeEnv(books, (), hook),
            RENDERER,
            Script(turn("1")),
            RolloutConfig(group_size=2, max_retries=5),
        )
        with trio.move_on_after(2.5) as scope:
            await run_group(rollout, Task("t"), index=0, seed=0, flight=Flight())
        return scope.cancelled_caught

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert books.opened == books.closed == 2


@given(
    failing=st.dictionaries(st.integers(0, GROUP_SIZE - 1), st.integers(0, 4)),
    policy=st.sampled_from(["retry", "survivors", "drop"]),
    min_group_size=st.integers(1, GROUP_SIZE),
)
def test_law_6_a_group_is_whole_by_its_rule_or_none(failing, policy, min_group_size):
    outcome, _ = run(failing, failure=policy, max_retries=1, min_group_size=min_group_size)
    tries = 2 if policy == "retry" else 1
    lost = sum(count >= tries for count in failing.values())
    least = min_group_size if policy == "survivors" else GROUP_SIZE
    if GROUP_SIZE - lost >= least:
        assert len(outcome.group.trajectories) == GROUP_SIZE - lost
    else:
        assert outcome.group is None
        assert outcome.failures


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 4), unique=True, max_size=50))
def test_law_18_distinct_places_have_distinct_keys(places):
    identities = [
        identify(seed, index=index, member=member, attempt=attempt)
        for seed, index, member, attempt in places
    ]
    assert len({identity.key for identity in identities}) == len(places)
    assert len({identity.env_seed for identity in identities}) == len(places)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_size", 0),
        ("max_tokens", 1),
        ("max_retries", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("env_deadline_seconds", 0.0),
        ("sample_deadline_seconds", float("inf")),
        ("max_episodes", 3),
        ("min_group_size", 17),
    ],
)
def test_an_impossible_number_is_refused_with_its_value(field, value):
    with pytest.raises(ConfigError, match=rf"rollout.{field} .*got {value}.*--rollout"):
        RolloutConfig(failure="survivors", **{field: value})
