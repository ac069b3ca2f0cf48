"""The record of an episode is append-only and token-exact."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs import StepResult
from headrace.pipeline.rollout.trajectory import TrajectoryBuilder
from headrace.pipeline.types import (
    NO_VERSION,
    NOT_RECORDED,
    Completion,
    FinishReason,
    StopReason,
    Trajectory,
    Turn,
)

ids = st.lists(st.integers(0, 99), min_size=1, max_size=6)


def completion(tokens: list[int], version: int) -> Completion:
    return Completion(
        np.array(tokens, np.int32),
        -np.arange(1, len(tokens) + 1, dtype=np.float32),
        np.full(len(tokens), version, np.int32),
        FinishReason.STOP,
    )


@given(prompt=ids, turns=st.lists(st.tuples(ids, ids), min_size=1, max_size=5))
def test_law_1_and_2_prefix_and_mask(prompt, turns):
    builder = TrajectoryBuilder(prompt)
    expected, mask = list(prompt), [False] * len(prompt)
    for version, (sampled, observed) in enumerate(turns):
        before = builder.tokens
        builder.act(completion(sampled, version), sample_seconds=1.0)
        assert builder.last_turn_tokens == sampled
        builder.answered(StepResult(reward=0.5, info={"success": 1.0}), env_seconds=2.0)
        builder.observe(observed)
        np.testing.assert_array_equal(builder.tokens[: len(before)], before)
        expected += sampled + observed
        mask += [True] * len(sampled) + [False] * len(observed)
    trajectory = builder.finish(StopReason.TERMINATED, seconds=3.0)
    assert trajectory.tokens.tolist() == expected
    assert trajectory.loss_mask.tolist() == mask
    assert ((trajectory.policy_versions != NO_VERSION) == trajectory.loss_mask).all()
    assert (trajectory.rollout_logprobs[~trajectory.loss_mask] == 0).all()
    assert (trajectory.rollout_logprobs[trajectory.loss_mask] < 0).all()
    spans = np.zeros(len(expected), bool)
    for turn in trajectory.turns:
        spans[turn.start : turn.end] = True
    assert (spans == trajectory.loss_mask).all()
    assert trajectory.reward == pytest.approx(0.5 * len(turns))
    assert trajectory.rewards == {"env": trajectory.reward}
    assert (trajectory.oldest_version, trajectory.newest_version) == (0, len(turns) - 1)


@given(turns=st.lists(st.tuples(ids, ids, st.booleans()), min_size=1, max_size=5))
def test_the_newest_record_of_experts_is_about_all_tokens_before_it(turns):
    builder, newest = TrajectoryBuilder([7, 8]), None
    for version, (sampled, observed, recorded) in enumerate(turns):
        turn = completion(sampled, version)
        if recorded:
            read = len(builder) + len(sampled)
            newest = np.full((read, 3, 2), version, np.int16)
            turn = replace(turn, experts=newest)
        builder.act(turn, sample_seconds=0.0)
        builder.answered(StepResult(), env_seconds=0.0)
        builder.observe(observed)
    experts = builder.finish(StopReason.TERMINATED, seconds=0.0).experts
    if newest is None:
        assert experts is None
    else:
        np.testing.assert_array_equal(experts[: len(newest)], newest)
        assert (experts[len(newest) :] == NOT_RECORDED).all()
        assert experts.shape == (len(builder), 3, 2)


def floats(*values):
    return np.array(values, np.float32)


def arrays(**changes):
    fields = {
        "tokens": np.array([1, 2, 3], np.int32),
        "loss_mask": np.array([False, True, True]),
        "rollout_logprobs": np.zeros(3, np.float32),
        "policy_versions": np.array([NO_VERSION, 0, 1], np.int32),
        "turns": (Turn(1, 3),),
        "rewards": {},
        "reward": 0.0,
        "stop_reason": StopReason.TERMINATED,
    }
    return fields | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": np.array([1, 2], np.int32)}, "differ in length"),
        ({"experts": np.zeros((2, 1, 1), np.int16)}, "differ in length"),
        ({"policy_versions": np.array([0, 0, 1], np.int32)}, "not sampled has a policy version"),
        ({"policy_versions": np.array([-7, 0, 1], np.int32)}, "not sampled has a policy version"),
        ({"policy_versions": np.array([-1, 1, 0], np.int32)}, "non-decreasing"),
        ({"policy_versions": np.array([-1, -1, 0], np.int32)}, ">= 0"),
        ({"rollout_logprobs": floats(-1, -1, -1)}, "not sampled has a logprob"),
        ({"rollout_logprobs": floats(np.nan, -1, -1)}, "not sampled has a logprob"),
        ({"rollout_logprobs": floats(0, np.nan, -1)}, "logprobs must be finite and <= 0"),
        ({"rollout_logprobs": floats(0, -1, -np.inf)}, "logprobs must be finite and <= 0"),
        ({"rollout_logprobs": floats(0, -1, 0.5)}, "logprobs must be finite and <= 0"),
        ({"turns": (Turn(0, 3),)}, "turns must span"),
        ({"turns": (Turn(1, 2),)}, "turns must span"),
        ({"turns": (Turn(1, 4),)}, "turns must span"),
        ({"turns": (Turn(1, 2), Turn(2, 3))}, "turns must be in order"),
        ({"turns": (Turn(1, 3), Turn(1, 3))}, "turns must be in order"),
        ({"turns": (Turn(1, 1), Turn(2, 3))}, "turns must be in order"),
        ({"turns": (Turn(-2, 3),)}, "turns must be in order"),
        ({"reward": np.nan}, "reward of a trajectory must be finite, got nan"),
    ],
)
def test_a_trajectory_whose_arrays_disagree_is_refused(changes, message):
    Trajectory(**arrays())
    Trajectory(**arrays(turns=()))
    Trajectory(**arrays(rollout_logprobs=floats(0, 1e-7, -1)))
    Trajectory(**arrays(rollout_logprobs=floats(-0.0, -1, -1)))
    with pytest.raises(ValueError, match=message):
        Trajectory(**arrays(**changes))
