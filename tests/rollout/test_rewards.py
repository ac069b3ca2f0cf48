"""Rewards of episodes and of groups, from the rollout's side."""

import math
from functools import partial

import pytest
import trio

from headrace.envs import Message, Reward, RewardFailed
from headrace.envs.rewards import Scorer
from headrace.envs.rewards.record import EpisodeRecord
from headrace.pipeline.rollout.episode import Episode, EpisodeIdentity, Rollout
from headrace.pipeline.text.renderer import CharacterRenderer, TextConfig
from headrace.pipeline.types import EpisodeFailure, FailureKind, Trajectory
from tests.controller.schedules import escape
from tests.rollout.talks import CONFIG, TASK, Script, Talk
from tests.rollout.test_group import World

ANY = CharacterRenderer(TextConfig("0123456789eionqstu"))
Here = partial(Reward, in_loop=True)  # under the virtual clock


def run(*rewards, weights=None, stop_after=math.inf, env=Talk):
    """Run an episode of two turns, each with a reward of 1 from the environment."""
    scorer = Scorer(rewards, weights)
    sample = Script([ANY.turn(Message("assistant", "12"))])
    rollout = Rollout(lambda: env([Message("user", "1")]), ANY, sample, CONFIG, scorer)

    async def main():
        episode = Episode(rollout, TASK, EpisodeIdentity((0, 0), 0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop, episode, stop_after)
            outcome = await episode.run()
            nursery.cancel_scope.cancel()
        return outcome

    async def stop(episode, seconds):
        await trio.sleep(seconds)
        episode.stop("over_age")

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def tokens(episode):
    return episode.sampled_tokens


async def hangs(episode):
    await trio.sleep_forever()


async def nothing(episode):
    return None


def test_an_episode_has_its_rewards_by_name_and_their_weighted_sum():
    seen = []

    async def watching(episode):
        seen.append(episode)
        return 0.5

    outcome = run(Here("tokens", tokens, weight=-0.1), Here("watching", watching))
    assert isinstance(outcome, Trajectory)
    sampled = int(outcome.loss_mask.sum())
    assert outcome.rewards == {"env": 2.0, "tokens": sampled, "watching": 0.5}
    assert outcome.reward == pytest.approx(2.0 - 0.1 * sampled + 0.5)
    (record,) = seen
    assert record.task is TASK
    assert record.messages == outcome.messages
    assert (record.stop_reason, record.env_reward) == ("terminated", 2.0)
    assert record.sampled_tokens == sampled


def test_a_weight_of_the_environments_own_reward_is_that_of_its_turns():
    outcome = run(Here("tokens", tokens), weights={"env": 0.25, "tokens": 0})
    assert outcome.reward == 0.5
    assert [turn.reward for turn in outcome.turns] == [0.25, 0.25]
    assert outcome.rewards["env"] == 2.0


@pytest.mark.parametrize(
    ("function", "kind"),
    [(nothing, FailureKind.REWARD_ERROR), (hangs, FailureKind.REWARD_TIMEOUT)],
)
def test_what_cannot_be_scored_is_a_failure_of_a_kind_of_its_own(function, kind):
    outcome = run(Here("tokens", tokens), Here("mine", function))
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is kind
    assert outcome.error.startswith("the reward 'mine' couldn't be computed: ")
    assert len(outcome.partial) == 4


async def escapes(episode):
    await escape()


async def escapes_with_an_error(episode):
    try:
        await escape()
    except trio.Cancelled as stray:
        raise BaseExceptionGroup("of a nursery", [stray, OSError("lost")]) from None


@pytest.mark.parametrize(
    ("function", "why"),
    [(escapes, "cancelled by a scope or nursery"), (escapes_with_an_error, "OSError: lost")],
)
@pytest.mark.parametrize("of", ["episode", "group"])
def test_a_cancellation_that_escapes_from_a_reward_is_a_failure_of_it_alone(function, why, of):
    scorer = Scorer([Here("tokens", tokens), Here("mine", function, of=of)])
    record = EpisodeRecord(TASK, (), "terminated", 1, 0.0, {})
    if of == "group":
        (failed,) = trio.run(scorer.compare, [record])
    else:
        with pytest.raises(RewardFailed) as caught:
            trio.run(scorer.score, record)
        failed = caught.value
    assert f"the reward 'mine' couldn't be computed: {why}" in str(failed)


def test_what_ends_a_program_passes_a_reward():
    async def exits(episode):
        raise SystemExit(3)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(Here("tokens", tokens), Here("mine", exits))
    assert caught.group_contains(SystemExit)


def test_an_environment_that_cannot_score_is_such_a_failure_and_not_its_own_error():
    class Unscored(Talk):
        async def step(self, message):
            raise RewardFailed("no scorer for it")

    outcome = run(Reward("tokens", tokens), env=Unscored)
    assert isinstance(outcome, EpisodeFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.REWARD_ERROR, "no scorer for it")


def test_an_episode_that_is_stopped_while_it_is_scored_is_cancelled():
    outcome = run(Here("hangs", hangs, deadline_seconds=50.0), stop_after=5.0)
    assert isinstance(outcome, EpisodeFailure)
    assert outcome.kind is FailureKind.CANCELLED
    assert outcome.error == "the rewards: over_age"


# Groups ------------------------------------------------------------------------------------


def compared(function, **options):
    """Return a group of three whose members are compared by `function`."""
    reward = Here("compared", function, of="group", deadline_seconds=5.0)
    return World(scorer=Scorer([reward]), **options)


async def ranks(episodes):
    await trio.sleep(1.0)
    return list(range(len(episodes)))


def test_members_are_compared_when_the_last_has_ended():
    world = compared(ranks).run(0, 1, 2)
    trajectories = world.group.collect((0, 1, 2)).trajectories
    assert [each.rewards["compared"] for each in trajectories] == [0.0, 1.0, 2.0]
    assert [each.reward for each in trajectories] == [
        each.rewards["env"] + each.rewards["compared"] for each in trajectories
    ]


def test_a_member_without_a_score_is_tried_again_and_compared_with_those_that_wait():
    calls = []

    async def function(episodes):
        calls.append(len(episodes))
        return [1.0, None if len(calls) == 1 else 2.0, 3.0]

    world = compared(function, retry=lambda member, attempt: (member, attempt) == (1, 0)).run(
        0, 1, 2
    )
    assert calls == [3, 3]
    outcomes = [(member, attempt, type(outcome)) for member, attempt, outcome in world.concluded]
    assert outcomes[0] == (1, 0, EpisodeFailure)
    assert set(outcomes[1:]) == {(0, 0, Trajectory), (1, 1, Trajectory), (2, 0, Trajectory)}
    assert world.flight.failures == {"reward_error": 1}


def test_survivors_are_compared_without_those_that_are_lost():
    async def function(episodes):
        return [None] + [float(len(episodes))] * (len(episodes) - 1)

    world = compared(once(function)).run(0, 1, 2)
    ended = {member: outcome for member, _, outcome in world.concluded}
    assert isinstance(ended[0], EpisodeFailure)
    assert [ended[member].rewards["compared"] for member in (1, 2)] == [2.0, 2.0]


def once(function):
    """Return a function that is `function` the first time, and gives all members a score then."""
    calls = []

    async def called(episodes):
        calls.append(episodes)
        if len(calls) == 1:
            return await function(episodes)
        return [float(len(episodes))] * len(episodes)

    return called


@pytest.mark.parametrize("when", [0.5, 1.5])  # while a member waits; while they are compared
def test_a_group_that_is_stopped_lets_its_waiting_members_go(when):
    async def function(episodes):
        await trio.sleep(4.0)
        return [0.0] * len(episodes)

    async def stop(nursery):
        await trio.sleep(when)
        world.group.stop("over_age")

    world = compared(function)
    world.run(0, 1, 2, meanwhile=stop)
    assert world.concluded == []


def test_books_are_balanced_when_a_run_is_cancelled_in_a_comparison():
    async def cancel(nursery):
        await trio.sleep(1.5)
        nursery.cancel_scope.cancel()

    async def function(episodes):
        await trio.sleep_forever()

    world = compared(function).run(0, 1, 2, meanwhile=cancel)
    assert world.concluded == []
