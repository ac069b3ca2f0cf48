"""What the real sampler draws, cut and tempered, is on-policy for the real learner."""

from functools import cache, partial

import jax
import numpy as np
import pytest

from headrace.envs import StepResult, Task
from headrace.pipeline.algorithms.config import AlgorithmConfig, ImportanceConfig
from headrace.pipeline.algorithms.losses import policy_loss
from headrace.pipeline.groups.batching import form_batch
from headrace.pipeline.learner import Anchors, batch_logprobs, init_state, train_step
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.rollout.config import RolloutConfig
from headrace.pipeline.rollout.trajectory import TrajectoryBuilder
from headrace.pipeline.types import SampleRequest, StopReason, TrajectoryGroup
from tests.learner.toy import quick_jit
from tests.sampler.helpers import (
    MODEL,
    STOP,
    learner_params,
    run_native,
    sample_all,
    sampler_params,
)

pytestmark = pytest.mark.slow

ROLLOUT = RolloutConfig(temperature=0.7, top_k=9, top_p=0.8, min_p=0.02)
FORWARD = partial(forward, config=MODEL)
MEMBERS, SHAPE = 6, (1, 4, 32)


@cache
def sampled_batch():
    """A group of the real sampler, with its advantages, as a batch of the learner."""
    requests = [
        SampleRequest(
            tokens=np.array([1, 2, 5], np.int32),
            max_tokens=8,
            stop_ids=(STOP,),
            key=(seed, 1),
            temperature=ROLLOUT.temperature,
            sampling=ROLLOUT.sampling,
        )
        for seed in range(MEMBERS)
    ]
    completions = []

    async def body(sampler):
        await sampler.publish(sampler_params(0), 0)
        completions.extend(await sample_all(sampler.sample, requests))

    run_native(body)
    members = tuple(map(trajectory, requests, completions))
    group = TrajectoryGroup(0, Task("a"), members)
    batch, _ = form_batch(
        [group], lambda rewards, present: rewards, batch=0, group_size=MEMBERS, shape=SHAPE
    )
    return batch


def trajectory(request, completion):
    builder = TrajectoryBuilder(request.tokens.tolist())
    builder.act(completion, sample_seconds=0.0)
    reward = float(completion.tokens[0]) / 10.0
    builder.answered(StepResult(reward=reward, terminated=True), env_seconds=0.0)
    return builder.finish(StopReason.TERMINATED, seconds=0.0)


def two_steps(importance, temperature=ROLLOUT.temperature):
    """Metrics of the first update and of a second one on the same data."""
    batch, params = sampled_batch(), learner_params(0)
    optimizer = make_optimizer(LearnerConfig(learning_rate=1e-2))
    step = partial(
        train_step,
        forward=FORWARD,
        loss=partial(policy_loss, config=AlgorithmConfig(importance=importance)),
        optimizer=optimizer,
        temperature=temperature,
    )
    score = partial(batch_logprobs, forward=FORWARD, temperature=temperature)
    old = quick_jit(score)(params, batch)
    if importance.old_logprobs == "rollout":
        old = batch.rollout_logprobs
    compiled = quick_jit(step)
    state, first = compiled(init_state(params, optimizer), batch, Anchors(old, old))
    _, second = compiled(state, batch, Anchors(old, old))
    return jax.device_get((first, second))


def test_the_cuts_took_mass_away_and_the_batch_says_so():
    batch = sampled_batch()
    kept = batch.log_kept_mass[batch.loss_mask]
    assert (kept <= 0).all()
    assert kept.min() < -0.1
    assert (batch.log_kept_mass[~batch.loss_mask] == 0).all()


@pytest.mark.parametrize("old_logprobs", ["recompute", "rollout"])
def test_with_a_temperature_and_cuts_the_ratio_is_one_in_the_first_update(old_logprobs):
    first, second = two_steps(ImportanceConfig(old_logprobs=old_logprobs))
    for name in ("ratio_max", "ratio_min", "importance_weight", "importance_max"):
        np.testing.assert_allclose(first[name], 1.0, atol=3e-6, err_msg=name)
    np.testing.assert_allclose(first["mismatch_max"], 0.0, atol=3e-6)
    assert first["clipped_low"] == first["clipped_high"] == first["importance_clipped"] == 0
    assert max(second["ratio_max"] - 1, 1 - second["ratio_min"]) > 1e-3


def test_another_temperature_is_not_on_policy():
    first, _ = two_steps(ImportanceConfig(old_logprobs="rollout"), temperature=1.0)
    assert max(first["ratio_max"] - 1, 1 - first["ratio_min"]) > 0.05


def test_towards_the_whole_softmax_a_token_weighs_the_mass_that_was_kept():
    batch = sampled_batch()
    first, _ = two_steps(ImportanceConfig(target="full"))
    kept = np.exp(batch.log_kept_mass[batch.loss_mask])
    np.testing.assert_allclose(first["importance_weight"], kept.mean(), rtol=1e-4)
    np.testing.assert_allclose(first["importance_max"], kept.max(), rtol=1e-4)
