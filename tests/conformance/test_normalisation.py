"""Normalisation: an update doesn't depend on how its batch was split."""

from dataclasses import replace
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from headrace.pipeline.algorithms.losses import policy_loss
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.learner import Anchors, batch_logprobs, init_state, train_step
from headrace.pipeline.learner.credit import assign_credit
from headrace.pipeline.learner.critic import CriticRule, batch_values, critic_step, init_critic
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from tests.learner.toy import WIDTH, quick_jit, spread, toy_batch, toy_forward, toy_params

CONFIG = replace(PRESETS["ppo"], kl=replace(PRESETS["ppo"].kl, coefficient=0.1, kind="k1_reward"))
OPTIMIZER = make_optimizer(LearnerConfig(learning_rate=0.01))  # Adam, and a bound on the norm
RULE = CriticRule(OPTIMIZER)


@quick_jit
def updated(params, critic, reference, batch):
    """PPO: values, penalties, advantages whitened over the batch, and a step of both models."""
    anchors = Anchors(
        *(batch_logprobs(each, batch, forward=toy_forward) for each in (params, reference))
    )
    values = batch_values(critic, batch, forward=toy_forward)
    credit = assign_credit(batch, anchors, values, config=CONFIG)
    policy, of_policy = train_step(
        init_state(params, OPTIMIZER),
        batch._replace(advantages=credit.advantages),
        anchors,
        forward=toy_forward,
        loss=partial(policy_loss, config=CONFIG),
        optimizer=OPTIMIZER,
    )
    judge, of_critic = critic_step(
        init_state(critic, OPTIMIZER),
        batch._replace(advantages=credit.returns),
        values,
        forward=toy_forward,
        rule=RULE,
    )
    return (policy.params, judge.params), {**of_policy, **of_critic}


def update(batch):
    """Return both models and what was measured."""
    values = 0.1 * jnp.arange(WIDTH, dtype=jnp.float32)
    critic = init_critic(toy_params(1), WIDTH) | {"value": values}
    return jax.device_get(updated(toy_params(0), critic, toy_params(2), batch))


def over_devices(batch, devices):
    if devices == 1:
        return batch
    mesh = Mesh(np.array(jax.devices()[:devices]), ("rows",))
    arrays = jax.device_put(batch[:-2], NamedSharding(mesh, P(None, "rows")))
    return type(batch)(*arrays, microbatches=batch.microbatches)


@pytest.mark.parametrize(
    ("used", "devices"), [(2, 1), (4, 1), pytest.param(1, 4, marks=pytest.mark.slow)]
)
def test_conformance_18_a_policy_and_its_critic_do_not_depend_on_the_split(used, devices):
    expected, of_whole = update(toy_batch())
    found, metrics = update(over_devices(spread(toy_batch(), used), devices))
    chex.assert_trees_all_close(found, expected, atol=1e-6)
    for name, value in of_whole.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    assert of_whole["grad_norm"] > 0.1
    assert of_whole["critic_grad_norm"] > 0.1
