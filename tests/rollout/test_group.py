"""A group runs its members, keeps their trajectories, and can be stopped; keys are distinct."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import Task
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.episode import Episode, Rollout
from headrace.pipeline.rollout.group import Flight, Group, identify
from headrace.pipeline.types import EpisodeFailure, FailureKind, Trajectory
from tests.fakes.env import Books, FakeEnv, nothing
from tests.rollout.test_episode import RENDERER, Script, turn

TASK = Task("t", {"text": "12"})


class World:
    """One group in the air, and all that was concluded of it."""

    def __init__(
        self, hook=nothing, *, version=None, retry=lambda member, attempt: False, scorer=None
    ):
        self.books = Books()
        self.sample = Script(turn("1"), seconds=1.0)
        self.flight = Flight()
        self.concluded = []
        self._retry = retry
        rollout = Rollout(
            lambda: FakeEnv(self.books, (), hook),
            RENDERER,
            self.sample,
            RolloutConfig(group_size=3, max_episodes=8, env_deadline_seconds=50.0),
            scorer,
        )
        self.group = Group(rollout, TASK, 7, version)

    def conclude(self, index, member, attempt, outcome):
        self.concluded.append((member, attempt, outcome))
        return self._retry(member, attempt)

    async def run_member(self, member):
        await self.group.run_member(member, seed=5, flight=self.flight, conclude=self.conclude)

    def run(self, *members, meanwhile=None):
        async def main():
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(self.run_member, member)
                if meanwhile is not None:
                    nursery.start_soon(meanwhile, nursery)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        assert self.books.balanced
        assert self.flight.episodes == 0
        return self


def failing(*, tries):
    calls = []

    async def hook(call, task, step):
        if call == "step":
            calls.append(call)
            if len(calls) <= tries:
                raise OSError("flaky")

    return hook


def test_members_are_run_once_each_and_concluded():
    world = World().run(0, 1, 2)
    assert sorted(member for member, _, _ in world.concluded) == [0, 1, 2]
    assert all(isinstance(outcome, Trajectory) for _, _, outcome in world.concluded)
    group = world.group.collect((0, 2))
    assert (group.index, group.task) == (7, TASK)
    outcomes = {member: outcome for member, _, outcome in world.concluded}
    assert group.trajectories == (outcomes[0], outcomes[2])
    assert (world.flight.trajectories, world.flight.turns) == (3, 3)


def test_a_member_is_run_again_as_often_as_it_is_told_to_with_other_keys():
    world = World(failing(tries=2), retry=lambda member, attempt: attempt < 2).run(1)
    assert [attempt for _, attempt, _ in world.concluded] == [0, 1, 2]
    kinds = [isinstance(outcome, EpisodeFailure) for _, _, outcome in world.concluded]
    assert kinds == [True, True, False]
    keys = [request.key for request in world.sample.requests]
    assert keys == [identify(5, index=7, member=1, attempt=attempt).key for attempt in range(3)]
    assert world.flight.failures == {"env_error": 2}


def test_requests_carry_the_groups_priority_and_version():
    world = World(version=4).run(0)
    (request,) = world.sample.requests
    assert (request.priority, request.version) == (7, 4)


def test_stopped_members_end_at_once_and_conclude_nothing():
    async def hook(call, task, step):
        if call == "step":
            await trio.sleep(40.0)

    async def stop(nursery):
        await trio.sleep(3.0)
        world.group.stop("over_age")

    world = World(hook)
    world.run(0, 1, meanwhile=stop)
    assert world.concluded == []
    assert world.books.closed == 2
    assert world.flight.failures == {}  # to be stopped is no failure


def test_a_group_that_is_stopped_starts_no_member_and_no_further_try():
    def stop_and_ask_for_more(member, attempt):
        world.group.stop("over_age")
        return True

    world = World(failing(tries=9), retry=stop_and_ask_for_more)
    world.run(0)
    assert len(world.concluded) == 1
    world.run(1, 2)
    assert world.books.opened == 1


def test_an_outcome_that_comes_after_all_is_concluded_and_may_be_ignored():
    """It ends in the very moment of the stop: nothing is awaited any more."""

    async def hook(call, task, step):
        if call == "close":
            world.group.stop("over_age")

    world = World(hook)
    world.run(0)
    assert len(world.concluded) == 1


def test_law_16_a_cancelled_member_makes_no_further_try_though_closing_fails():
    async def hook(call, task, step):
        if call == "close":
            raise OSError("still in use")
        await trio.sleep(1.0)

    async def cancel(nursery):
        await trio.sleep(2.5)
        nursery.cancel_scope.cancel()

    world = World(hook, retry=lambda member, attempt: True).run(0, 1, meanwhile=cancel)
    assert world.books.opened == world.books.closed == 2
    assert world.concluded == []


def test_an_error_with_which_an_environment_answers_a_cancellation_is_not_counted():
    async def hook(call, task, step):
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            raise OSError("connection reset") from None

    async def cancel(nursery):
        await trio.sleep(2.5)
        nursery.cancel_scope.cancel()

    world = World(hook).run(0, 1, meanwhile=cancel)
    assert world.concluded == []
    assert world.flight.failures == {}


def test_a_flight_lists_its_episodes_the_longest_waits_first():
    async def hook(call, task, step):
        if call == "step":
            await trio.sleep(40.0)

    async def look(nursery):
        await trio.sleep(0.5)
        nursery.start_soon(world.run_member, 1)
        await trio.sleep(10.0)
        seen.extend(world.flight.describe(trio.current_time(), most=1))
        assert world.flight.episodes == 2
        assert world.flight.moved == 1.5

    seen = []
    world = World(hook)
    world.run(0, meanwhile=look)
    assert seen == [
        "7.0 (task 't'): environment step, for 9.5 s of at most 50 s",
        "and 1 more episodes",
    ]


def test_a_flight_counts_a_failure_by_its_kind():
    async def hang(call, task, step):
        if call == "reset":
            await trio.sleep_forever()

    async def main():
        rollout = Rollout(
            lambda: FakeEnv(Books(), (), hang), RENDERER, Script(turn("1")), RolloutConfig()
        )
        await flight.run(Episode(rollout, TASK, identify(0, index=0, member=0)))

    flight = Flight()
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert flight.failures == {FailureKind.ENV_TIMEOUT: 1}
    assert flight.moved == 0.0


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 4), unique=True, max_size=50))
def test_law_18_distinct_places_have_distinct_keys(places):
    identities = [
        identify(seed, index=index, member=member, attempt=attempt)
        for seed, index, member, attempt in places
    ]
    assert len({identity.key for identity in identities}) == len(places)
    assert len({identity.env_seed for identity in identities}) == len(places)


@given(st.tuples(*[st.integers(0, 2**64 - 1)] * 4), st.integers(0, 9))
def test_conformance_28_keys_depend_on_nothing_but_the_place(place, version):
    seed, index, member, attempt = place
    named = {"index": index, "member": member, "attempt": attempt}
    one, other = identify(seed, **named), identify(seed, **named, version=version)
    assert (one.key, one.env_seed, one.priority) == (other.key, other.env_seed, other.priority)
    assert (one.version, other.version) == (None, version)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_size", 0),
        ("max_tokens", 1),
        ("max_retries", -1),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("min_p", -0.5),
        ("env_deadline_seconds", 0.0),
        ("sample_deadline_seconds", float("inf")),
        ("max_episodes", 3),
        ("min_group_size", 17),
    ],
)
def test_an_impossible_number_is_refused_with_its_value(field, value):
    with pytest.raises(ConfigError, match=rf"rollout.{field} .*got {value}.*--rollout"):
        RolloutConfig(failure="survivors", **{field: value})
