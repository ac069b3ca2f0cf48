"""Batches of whole groups: advantages by group, statistics by hand."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.envs.base import Task
from headrace.pipeline.algorithms.advantages import batch_scaled, batch_whitened, uncompared
from headrace.pipeline.algorithms.config import RewardsConfig
from headrace.pipeline.errors import ConfigError
from headrace.pipeline.groups.batching import BatchStatistics, form_batch
from headrace.pipeline.types import (
    NO_VERSION,
    StopReason,
    TrainBatch,
    Trajectory,
    TrajectoryGroup,
    Turn,
)


def trajectory(
    reward: float, *, tokens: int, versions: tuple[int, ...], success: float | None = None
) -> Trajectory:
    """The last tokens were sampled, one under each of the versions."""
    prompt = tokens - len(versions)
    mask = np.arange(tokens) >= prompt
    return Trajectory(
        tokens=(100 * abs(reward) + np.arange(tokens)).astype(np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        policy_versions=np.array([NO_VERSION] * prompt + list(versions), np.int32),
        turns=(Turn(prompt, tokens),),
        rewards={"env": reward},
        reward=reward,
        stop_reason=StopReason.TERMINATED,
        info={} if success is None else {"success": success},
    )


GROUPS = [
    TrajectoryGroup(
        4,
        Task("a"),
        (
            trajectory(1.0, tokens=6, versions=(2, 3), success=1.0),
            trajectory(3.0, tokens=4, versions=(3,), success=0.0),
        ),
    ),
    TrajectoryGroup(  # all rewards equal, and one member was lost
        5, Task("b"), (trajectory(2.0, tokens=5, versions=(4, 4, 5), success=1.0),)
    ),
]


def centred(rewards: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.float32]:
    return np.where(present, rewards - rewards[present].mean(), 0).astype(np.float32)


def form(
    groups: list[TrajectoryGroup],
    *,
    batch: int = 5,
    group_size: int = 2,
    max_lag: int | None = None,
) -> tuple[TrainBatch, BatchStatistics]:
    return form_batch(
        groups,
        centred,
        batch=batch,
        group_size=group_size,
        shape=(3, 2, 8),
        max_lag=max_lag,
    )


def test_each_token_has_the_advantage_of_its_trajectory() -> None:
    packed, _ = form(GROUPS)
    real = packed.segment_ids > 0
    by_token = dict(
        zip(packed.tokens[real].tolist(), packed.advantages[real].tolist(), strict=True)
    )
    expected = {100 + t: -1.0 for t in range(6)}
    expected |= {300 + t: 1.0 for t in range(4)}
    expected |= {200 + t: 0.0 for t in range(5)}
    assert by_token == expected


def test_a_group_s_advantages_do_not_depend_on_other_groups() -> None:
    alone, _ = form(GROUPS[:1])
    together, _ = form(GROUPS)
    values = [set(zip(b.tokens.flat, b.advantages.flat, strict=True)) for b in (alone, together)]
    assert values[0] <= values[1]


def test_the_advantage_is_told_who_is_present() -> None:
    seen = []

    def record(rewards: NDArray[np.float32], present: NDArray[np.bool_]) -> NDArray[np.float32]:
        seen.append((rewards.tolist(), present.tolist()))
        return rewards

    form_batch(GROUPS, record, batch=5, group_size=3, shape=(3, 2, 8))
    assert seen == [([1, 3, 0], [True, True, False]), ([2, 0, 0], [True, False, False])]


def test_normalized_by_the_batch_the_mean_square_is_one_and_ratios_are_kept() -> None:
    plain, _ = form(GROUPS)
    packed, statistics = form_batch(
        GROUPS, centred, batch=5, group_size=2, shape=(3, 2, 8), normalize=batch_scaled
    )
    used = plain.loss_mask & (plain.advantages != 0)
    ratios = packed.advantages[used] / plain.advantages[used]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)
    members = np.array([1.0, -1.0, 0.0])  # by hand: rewards 1 and 3 around 2, and one alone
    np.testing.assert_allclose(ratios[0], 1 / np.sqrt(np.mean(members**2)), rtol=1e-3)
    assert statistics.useful_trajectories == 2


@pytest.mark.parametrize(
    ("rewards", "useful", "flat"),
    [
        ([0, 0, 0, 1], 8, 0),  # against the batch's mean the zeros are worth something
        ([0, 0, 0, 0], 0, 4),
        ([0.1] * 4, 0, 4),  # whose mean is not 0.1 in float32
    ],
)
def test_what_is_useful_is_counted_after_the_whole_batch_is_compared(
    rewards: list[float], useful: int, flat: int
) -> None:
    groups = [
        TrajectoryGroup(i, Task("a"), (trajectory(reward, tokens=4, versions=(0, 0)),) * 2)
        for i, reward in enumerate(rewards)
    ]
    packed, statistics = form_batch(
        groups, uncompared, batch=0, group_size=2, shape=(1, 8, 4), normalize=batch_whitened
    )
    moved = packed.loss_mask & (packed.advantages != 0)
    assert moved.sum() == 2 * useful
    assert (statistics.useful_trajectories, statistics.flat_groups) == (useful, flat)


def test_statistics_by_hand() -> None:
    packed, statistics = form(GROUPS, batch=6)
    # Rows of 8 tokens: 6, 5, 4 tokens need 3 rows, so 2 microbatches of 2 rows are in use.
    assert packed.microbatches == 2
    assert statistics == BatchStatistics(
        groups=2,
        trajectories=3,
        useful_trajectories=2,
        flat_groups=1,
        tokens=15,
        sampled_tokens=6,
        masked_tokens=0,
        padding_share=1 - 15 / 32,
        reward_mean=2.0,
        success_mean=pytest.approx(2 / 3),
        lag_mean=3.0,  # 6 - 2 and 6 - 4
        lag_max=4,
        in_flight_mean=1.0,  # 3 - 2 and 5 - 4
    )


@pytest.mark.parametrize(
    ("max_lag", "trained", "lag_mean", "lag_max", "in_flight_mean"),
    [
        # Batch 6. The groups' sampled tokens are of the versions 2, 3 and 3; and 4, 4, 5.
        (None, {2, 3, 4, 5}, 3.0, 4, 1.0),
        (4, {2, 3, 4, 5}, 3.0, 4, 1.0),  # version 2 has lag 4: not too old
        (3, {3, 4, 5}, 2.5, 3, 0.5),  # lags 3 and 2; from 3 to 3, and from 4 to 5
        (1, {5}, 1.0, 1, None),  # the ledger gives out no group like the first one then
    ],
)
def test_tokens_above_max_lag_leave_the_loss_and_nothing_else(
    max_lag: int | None,
    trained: set[int],
    lag_mean: float,
    lag_max: int,
    in_flight_mean: float | None,
) -> None:
    plain, before = form(GROUPS, batch=6)
    masked, after = form(GROUPS, batch=6, max_lag=max_lag)
    for name in ("tokens", "segment_ids", "positions", "rollout_logprobs", "advantages"):
        np.testing.assert_array_equal(getattr(masked, name), getattr(plain, name))
    # Which token has which version: each token id is in one trajectory only.
    trajectories = [trajectory for group in GROUPS for trajectory in group.trajectories]
    version_of = {
        token: version
        for trajectory in trajectories
        for token, version in zip(trajectory.tokens, trajectory.policy_versions, strict=True)
    }
    in_loss = masked.tokens[masked.loss_mask].tolist()
    assert {version_of[token] for token in in_loss} == trained
    expected = [token for token, version in version_of.items() if version in trained]
    assert sorted(in_loss) == sorted(expected)
    assert after.sampled_tokens == len(in_loss)
    assert after.masked_tokens == before.sampled_tokens - len(in_loss)
    assert (after.lag_mean, after.lag_max) == (lag_mean, lag_max)
    assert in_flight_mean is None or after.in_flight_mean == in_flight_mean
    assert after.reward_mean == before.reward_mean


def test_success_is_none_where_no_environment_reports_it() -> None:
    group = TrajectoryGroup(0, Task("a"), (trajectory(1.0, tokens=3, versions=(0,)),))
    assert form([group])[1].success_mean is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="need 3 microbatches"):
        form_batch(GROUPS, centred, batch=5, group_size=2, shape=(2, 1, 8))
    with pytest.raises(ValueError, match=r"group 4 has 2 members, allowed are 1\.\.1"):
        form(GROUPS, group_size=1)
    with pytest.raises(ValueError, match="at least one group"):
        form([])


def two_turns(*rewards: float, truncated: bool = False) -> Trajectory:
    """Turns of two sampled tokens each, an observed one before each, rewarded one by one."""
    mask = np.tile([False, True, True], len(rewards))
    turns = [Turn(3 * k + 1, 3 * k + 3, reward=reward) for k, reward in enumerate(rewards)]
    return Trajectory(
        tokens=np.arange(len(mask), dtype=np.int32),
        loss_mask=mask,
        rollout_logprobs=np.where(mask, -0.5, 0).astype(np.float32),
        policy_versions=np.where(mask, 4, NO_VERSION).astype(np.int32),
        turns=tuple(turns),
        rewards={"env": sum(rewards), "style": -sum(rewards)},
        reward=sum(rewards),
        stop_reason=StopReason.MAX_TOKENS if truncated else StopReason.TERMINATED,
        log_kept_mass=np.where(mask, -0.25, 0).astype(np.float32),
    )


def credit(*trajectories: Trajectory, **rewards: object) -> list[list[float]]:
    """The advantages of the tokens of each trajectory, by hand-made packing: one a row."""
    packed, _ = form_batch(
        [TrajectoryGroup(0, Task("a"), trajectories)],
        centred,
        batch=6,
        group_size=len(trajectories),
        shape=(1, len(trajectories), 8),  # a row has no room for both
        rewards=RewardsConfig(**rewards),  # type: ignore[arg-type]
    )
    rows = zip(packed.advantages[0], packed.segment_ids[0], strict=True)
    by_length = {int((ids > 0).sum()): row[ids > 0].tolist() for row, ids in rows}
    return [by_length[len(trajectory.tokens)] for trajectory in trajectories]


def test_a_turn_is_credited_with_what_follows_compared_with_the_others_same_turn() -> None:
    # Returns with discount 1/2: (1 + 2/2, 2) and (3,); the second has no second turn.
    first, second = credit(two_turns(1.0, 2.0), two_turns(3.0), credit="turn", discount=0.5)
    assert first == [0, -0.5, -0.5, 0, 0, 0]  # 2 against 3; alone in its second turn
    assert second == [0, 0.5, 0.5]


def test_process_supervision_compares_all_turns_and_adds_up_what_follows() -> None:
    # Rewards 1, 2, 3 around their mean 2 are -1, 0, 1.
    first, second = credit(two_turns(1.0, 2.0), two_turns(3.0), credit="process")
    assert first == [0, -1, -1, 0, 0, 0]
    assert second == [0, 1, 1]


def test_with_a_critic_a_turn_s_last_token_has_its_reward() -> None:
    first, second = credit(two_turns(1.0, 2.0), two_turns(3.0), credit="critic")
    assert first == [0, 0, 1, 0, 0, 2]
    assert second == [0, 0, 3]


def test_rewards_compared_one_by_one_are_added_up_afterwards() -> None:
    # The named rewards cancel, in each member and so in the sum of the advantages.
    first, second = credit(two_turns(1.0, 2.0), two_turns(5.0), separately=True)
    assert set(first) == set(second) == {0.0}


def test_rewards_compared_one_by_one_are_weighted_afterwards() -> None:
    # Around their means, the first's rewards are -1 and 1 by name: 3 * -1 + 0.5 * 1.
    weights = ("env=3", "style=0.5")
    first, second = credit(two_turns(1.0, 2.0), two_turns(5.0), separately=True, weights=weights)
    assert (set(first), set(second)) == ({-2.5}, {2.5})


def test_the_penalty_for_length_counts_sampled_tokens() -> None:
    # 4 sampled tokens are over the limit of 3, 2 are not: -1 and 0, around -1/2.
    first, second = credit(
        two_turns(1.0, 2.0), two_turns(3.0), overlong_tokens=3, overlong_buffer_tokens=1
    )
    assert (set(first), set(second)) == ({-0.5}, {0.5})


def test_episodes_out_of_tokens_may_leave_the_loss_but_not_the_group() -> None:
    trajectories = two_turns(1.0, 2.0, truncated=True), two_turns(1.0)
    packed, statistics = form_batch(
        [TrajectoryGroup(0, Task("a"), trajectories)],
        centred,
        batch=6,
        group_size=2,
        shape=(1, 2, 9),
        rewards=RewardsConfig(mask_truncated=True),
    )
    assert (statistics.sampled_tokens, statistics.masked_tokens) == (2, 4)
    assert set(packed.advantages[packed.loss_mask].tolist()) == {-1.0}  # 1 against 3


def test_lags_kept_masses_and_experts_travel_with_their_tokens() -> None:
    experts = np.arange(24, dtype=np.int16).reshape(6, 2, 2)
    trajectory = replace(two_turns(1.0, 2.0), experts=experts)
    packed, _ = form_batch(
        [TrajectoryGroup(0, Task("a"), (trajectory,))],
        centred,
        batch=6,
        group_size=1,
        shape=(1, 1, 9),
    )
    np.testing.assert_array_equal(packed.lags, np.where(packed.loss_mask, 2, 0))
    np.testing.assert_array_equal(packed.log_kept_mass, np.where(packed.loss_mask, -0.25, 0))
    np.testing.assert_array_equal(packed.experts[0, 0, :6], experts)
