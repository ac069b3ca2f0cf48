"""The experts that a batch records reach every pass of the policy."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trio

from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss
from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.groups.packing import PackItem
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.service import Learner, UpdateRule
from headrace.pipeline.types import NOT_RECORDED, TrainBatch
from tests.learner.toy import quick_jit, toy_batch, toy_forward, toy_items, toy_params

SHAPE = (4, 8, 12)
OF_TOKEN = (2, 3)  # layers, experts of a token in each


def routed_forward(params, tokens, positions, segment_ids, *, experts=None):
    """A toy whose states show which experts it was told to take; it chooses expert 5 by itself."""
    hidden, head = toy_forward(params, tokens, positions, segment_ids)
    if experts is not None:
        beyond = jnp.where(experts == NOT_RECORDED, 0, experts - 5).sum((-2, -1))
        hidden = hidden * (1 + 0.01 * beyond.astype(jnp.float32))[..., None]
    return hidden, head


def recorded(item: PackItem, seed: int) -> PackItem:
    rng = np.random.default_rng(seed)
    return replace(item, experts=rng.integers(0, 9, (len(item.tokens), *OF_TOKEN), np.int16))


def loss(inputs):
    """Plain policy gradient: logprobs alone tell what was computed."""
    return policy_loss(inputs, config=AlgorithmConfig())


RULE = UpdateRule(routed_forward, loss, optax.sgd(0.1), SHAPE, replay=OF_TOKEN)
ITEMS = [recorded(item, seed) for seed, item in enumerate(toy_items())]


def update(*batches: TrainBatch, rule: UpdateRule = RULE) -> list[dict[str, float]]:
    async def main() -> list[dict[str, float]]:
        device = DeviceThread("headrace-learner")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            learner = Learner(toy_params(), rule, device)
            metrics = []
            for batch in batches:
                await learner.adopt(toy_params())
                metrics.append(await learner.update(batch))
            nursery.cancel_scope.cancel()
        return metrics

    return trio.run(main)


def test_every_score_of_an_update_takes_the_recorded_experts() -> None:
    batch = toy_batch(ITEMS)
    score = quick_jit(lambda params, batch: batch_logprobs(params, batch, forward=routed_forward))
    sampled = np.asarray(score(toy_params(), batch))
    unlike = np.asarray(score(toy_params(), batch._replace(experts=None)))
    assert np.abs(sampled - unlike)[batch.loss_mask].max() > 0.01
    # Recorded by a sampler that took those experts: the learner must find the same numbers.
    batch = batch._replace(rollout_logprobs=np.where(batch.loss_mask, sampled, 0))
    nothing = np.full_like(batch.experts, NOT_RECORDED)
    without, of_none = batch._replace(experts=None), batch._replace(experts=nothing)
    replayed, chosen, same = update(batch, without, of_none)
    assert replayed["mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert chosen["mismatch_kl"] > 1e-6
    assert chosen == same
    # The first step of an update has ratio 1: old and new logprobs are of the same experts.
    assert replayed["ratio_max"] == pytest.approx(1, abs=1e-5)


def test_records_that_nobody_replays_are_refused() -> None:
    for rule in (replace(RULE, replay=None), replace(RULE, replay=(2, 4))):
        with pytest.RaisesGroup(
            pytest.RaisesExc(ValueError, match=r"'experts': \(4, 8, 12, 2, 3\)")
        ):
            update(toy_batch(ITEMS), rule=rule)
