"""The learner as a stage: equal to the pure step, compiled once, one copy of its state."""

from dataclasses import replace
from functools import partial

import chex
import jax
import numpy as np
import optax
import pytest
import trio
from jax.sharding import NamedSharding, PartitionSpec

from headrace.pipeline.algorithms.config import ImportanceConfig, KlConfig
from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss, sft_loss
from headrace.pipeline.algorithms.presets import PRESETS
from headrace.pipeline.checkpoint import Checkpoints
from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.learner.credit import assign_credit
from headrace.pipeline.learner.critic import CriticRule
from headrace.pipeline.learner.distillation import Teacher
from headrace.pipeline.learner.logprobs import batch_logprobs
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.learner.service import Learner, UpdateRule
from headrace.pipeline.learner.state import init_state
from headrace.pipeline.learner.step import Anchors, train_step
from headrace.sharding.mesh import make_mesh
from tests.learner.toy import toy_batch, toy_forward, toy_items, toy_params

LOSS = partial(policy_loss, config=AlgorithmConfig(kl=KlConfig(0.1)))
SHAPE = (4, 8, 12)


def make_rule(**changes):
    settings = {
        "forward": toy_forward,
        "loss": LOSS,
        "optimizer": make_optimizer(LearnerConfig(learning_rate=0.01)),
        "batch_shape": SHAPE,
        "temperature": 0.7,
    }
    return UpdateRule(**(settings | changes))


def cheap_rule():
    """One program, quickly compiled, where the update itself doesn't matter."""
    return make_rule(loss=sft_loss, optimizer=optax.sgd(0.1), old_logprobs="rollout")


def with_learner(function, rule, params=None):
    """Run `function(learner)` while the learner's thread serves."""
    params = toy_params() if params is None else params

    async def main():
        device = DeviceThread("headrace-learner")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            result = await function(Learner(params, rule, device))
            nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


def by_hand(rule, batches):
    """The same updates with the pure functions."""
    score = jax.jit(partial(batch_logprobs, forward=rule.forward, temperature=rule.temperature))
    step = jax.jit(
        partial(
            train_step,
            forward=rule.forward,
            loss=rule.loss,
            optimizer=rule.optimizer,
            temperature=rule.temperature,
        )
    )
    state, reference = init_state(toy_params(), rule.optimizer), toy_params()
    for batch in batches:
        anchors = Anchors(score(state.params, batch), score(reference, batch))
        for _ in range(rule.epochs):
            state, metrics = step(state, batch, anchors)
    return state, metrics


def test_all_arrays_come_back_and_what_is_fixed_has_a_hash(tmp_path):
    rule = make_rule(keep_reference=True, critic=CriticRule(optax.adam(0.1)))

    def make(number, taught):
        params = jax.tree.map(lambda leaf: leaf + number, toy_params())
        teacher = Teacher(toy_forward, {"w": np.full(2, taught)})
        return Learner(params, rule, DeviceThread("unused"), teacher=teacher)

    learner, saved = make(0.0, 1.0), make(1.0, 1.0)
    assert set(saved.arrays) == {"state", "reference", "critic"}
    expected = jax.tree.map(np.array, saved.arrays)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"learner": expected}, {})
    learner.restore(lambda like: checkpoints.state(1, {"learner": like})["learner"])
    chex.assert_trees_all_equal(jax.tree.map(np.array, learner.arrays), expected)
    assert jax.tree.structure(learner.arrays) == jax.tree.structure(saved.arrays)
    assert learner.fixed_sha256() == saved.fixed_sha256() != make(1.0, 2.0).fixed_sha256()


@pytest.mark.slow
def test_updates_are_epochs_of_the_pure_step_against_fixed_anchors():
    rule = make_rule(epochs=2, keep_reference=True)
    batches = [toy_batch(), toy_batch(toy_items(seed=1))]

    async def update(learner):
        return [await learner.update(batch) for batch in batches], learner.state

    metrics, state = with_learner(update, rule)
    expected, last = by_hand(rule, batches)
    chex.assert_trees_all_close(state, expected, atol=1e-6)
    assert int(state.step) == 4
    assert metrics[1].keys() == last.keys()
    for name in ("loss", "ratio_max", "ref_kl", "tokens"):
        np.testing.assert_allclose(metrics[1][name], last[name], rtol=1e-4, atol=1e-6)


def test_law_12_a_learner_works_on_the_mesh_where_its_parameters_lie():
    mesh = make_mesh(jax.devices()[:4], {"fsdp": 2, "tensor": 2})
    cut = NamedSharding(mesh, PartitionSpec(None, "fsdp"))

    async def update(learner):
        return [await learner.update(toy_batch()) for _ in range(2)], learner.state

    metrics, state = with_learner(update, cheap_rule())
    found, on_mesh = with_learner(update, cheap_rule(), jax.device_put(toy_params(), cut))
    chex.assert_trees_all_close(found, metrics, rtol=1e-5)
    chex.assert_trees_all_close(*jax.device_get((on_mesh, state)), atol=1e-6)
    assert {leaf.sharding for leaf in jax.tree.leaves(on_mesh.params)} == {cut}


@pytest.mark.parametrize("old_logprobs", ["recompute", "rollout"])
def test_conformance_20_the_ratio_is_one_in_the_first_epoch_and_moves_in_the_second(old_logprobs):
    async def update(learner):
        return await learner.update(toy_batch())

    once, twice = (
        with_learner(update, make_rule(epochs=epochs, old_logprobs=old_logprobs))
        for epochs in (1, 2)
    )
    if old_logprobs == "recompute":
        for name in ("ratio_min", "ratio_max"):  # two programs, which round differently
            np.testing.assert_allclose(once[name], 1.0, atol=3e-6)
    assert abs(twice["ratio_max"] - once["ratio_max"]) > 1e-4
    # The mismatch is about the policy that came in, however many epochs follow.
    assert once["mismatch_abs"] > 0.1
    np.testing.assert_allclose(once["mismatch_abs"], twice["mismatch_abs"], rtol=1e-5)


def test_a_critic_learns_beside_the_policy_and_credits_its_tokens():
    config = replace(PRESETS["ppo"], importance=ImportanceConfig(old_logprobs="rollout"))
    rule = make_rule(
        loss=partial(policy_loss, config=config),
        old_logprobs="rollout",
        credit=partial(assign_credit, config=config),
        critic=CriticRule(optax.sgd(0.05), clip=0.0),
    )

    async def update(learner):
        return [await learner.update(toy_batch()) for _ in range(6)]

    metrics = with_learner(update, rule)
    losses = [each["critic_loss"] for each in metrics]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    assert metrics[0]["critic_value"] == 0.0  # begins with 0 for every token
    assert abs(metrics[-1]["critic_value"]) > 1e-3
    assert metrics[0]["advantage_abs"] > 0.1


def test_a_moving_reference_follows_the_policy_and_a_fixed_one_stays():
    async def update(learner):
        return [(await learner.update(toy_batch()))["ref_kl"] for _ in range(4)]

    fixed, moving = (
        with_learner(update, make_rule(keep_reference=True, reference_decay=decay))
        for decay in (1.0, 1e-6)
    )
    assert fixed[0] == moving[0] == 0.0
    assert fixed[3] > fixed[1] > 0.0
    assert max(moving) < 1e-6  # nearly the policy itself after each update


@pytest.mark.slow
def test_nothing_is_compiled_after_compile():
    async def update(learner):
        await learner.compile()
        assert learner.busy_seconds == 0.0
        compiled = []
        record = partial(_record, compiled)
        jax.monitoring.register_event_duration_secs_listener(record)
        try:
            for lengths in [(3,), (5, 9, 3), tuple(range(2, 13))]:
                await learner.update(toy_batch(toy_items(lengths)))
        finally:
            jax.monitoring.unregister_event_duration_listener(record)
        assert learner.busy_seconds > 0.0
        return compiled

    assert with_learner(update, make_rule(keep_reference=True)) == []


def _record(events, event, *_, **__):
    if "compile" in event:
        events.append(event)


def test_the_callers_parameters_survive_and_the_learners_are_donated():
    async def update(learner):
        before = learner.params
        await learner.update(toy_batch())
        return before, learner.params

    before, after = with_learner(update, cheap_rule())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_a_batch_of_another_shape_is_refused_before_it_reaches_the_device():
    async def update(learner):
        with pytest.raises(ValueError, match="shape"):
            await learner.update(toy_batch(row_tokens=16))
        with pytest.raises(ValueError, match=r"microbatches must be in 0\.\.4, got 5"):
            await learner.update(toy_batch()._replace(microbatches=np.array(5, np.int32)))

    with_learner(update, cheap_rule())


def test_a_cancelled_update_still_ends_and_the_next_one_works():
    async def update(learner):
        await learner.compile()
        with trio.move_on_after(0):
            await learner.update(toy_batch())
        await learner.update(toy_batch())
        return int(learner.state.step)

    assert with_learner(update, cheap_rule()) in (1, 2)
