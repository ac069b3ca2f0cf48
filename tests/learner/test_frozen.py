"""Frozen parameters get no gradient and no memory; adapters learn as if they were plain."""

import gc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trio
from jax.extend.core import jaxprs_in_params

from headrace.pipeline.algorithms.config import KlConfig
from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss
from headrace.pipeline.device_thread import DeviceThread
from headrace.pipeline.learner import batch_logprobs, init_state, train_step
from headrace.pipeline.learner.service import Learner, UpdateRule
from headrace.pipeline.models.adapted import forward_adapted
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.frozen import freeze, thaw
from headrace.pipeline.models.lora import LoraConfig, init_lora, merge
from headrace.pipeline.models.parameters import init
from tests.learner.toy import VOCAB, quick_jit, toy_batch, toy_items

# Deep enough to be scanned; no two sizes of it or of the batch are alike, so shapes tell arrays.
MODEL = ModelConfig(
    num_layers=5, width=16, num_heads=6, num_kv_heads=2, head_width=4, ffn_width=26
)
LORA = LoraConfig(rank=3, alpha=3.0, targets="query|value|output|down")
FORWARD = partial(forward, config=MODEL)
ADAPTED = partial(forward_adapted, forward=FORWARD, config=LORA)
KINDS = ("bfloat16", "int8", "nf4")
SHAPE = (2, 4, 12)


@pytest.fixture(scope="module")
def base():
    return quick_jit(partial(init, MODEL, VOCAB))(jax.random.key(0))


@pytest.fixture(scope="module")
def adapters(base):
    fresh = quick_jit(init_lora, static_argnums=2)(jax.random.key(1), base, LORA)
    return jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.02), fresh)


def batch():
    return toy_batch(microbatches=SHAPE[0], rows=SHAPE[1], row_tokens=SHAPE[2])


def one_step(forward, optimizer):
    loss = partial(policy_loss, config=AlgorithmConfig())
    return partial(train_step, forward=forward, loss=loss, optimizer=optimizer)


def gradient_of_hidden(forward):
    """Gradient of an arbitrary number that all hidden states decide."""
    rows = toy_batch(toy_items((5, 9, 3)), microbatches=1, rows=2)

    def number(adapters, base):
        hidden, _ = forward(
            (adapters, base), rows.tokens[0], rows.positions[0], rows.segment_ids[0]
        )
        return jnp.sum(hidden * jnp.cos(jnp.arange(hidden.size).reshape(hidden.shape)))

    return quick_jit(jax.grad(number))


adapted_gradient = gradient_of_hidden(ADAPTED)


def assert_near(found, expected):
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        largest = np.abs(right).max()
        assert largest > 1e-3
        np.testing.assert_allclose(left, right, atol=1e-5 * largest)


def test_gradients_of_adapters_are_those_with_the_base_widened(base, adapters):
    """One base of all kinds: each matrix is stored in another way."""
    kinds = {"query": "nf4", "value": "int8", "output": "bfloat16", "down": "float32"}
    kinds |= {"key": "int8", "gate": "nf4", "up": "bfloat16"}
    stored = {kind: quick_jit(freeze, static_argnums=1)(base, kind) for kind in KINDS}
    layers = {name: stored[kind]["layers"][name] for name, kind in kinds.items() if kind in KINDS}
    mixed = stored["nf4"] | {"layers": base["layers"] | layers}
    wide = quick_jit(thaw)(mixed)
    assert_near(adapted_gradient(adapters, mixed), adapted_gradient(adapters, wide))


def test_gradients_of_adapters_are_those_through_the_merged_weights(base, adapters):
    def merged(params, *rows):
        return FORWARD(merge(params[1], params[0], LORA).params, *rows)

    expected = gradient_of_hidden(merged)(adapters, base)
    assert_near(adapted_gradient(adapters, base), expected)


@pytest.mark.parametrize("stored", ["float32", *KINDS])
def test_no_array_of_the_size_of_the_base_is_made(base, adapters, stored):
    """Neither a gradient of it, nor optimizer state, nor a widened copy of all its layers."""
    frozen = jax.eval_shape(partial(freeze, stored=stored), base)
    optimizer = optax.adamw(1e-3)
    state = jax.eval_shape(partial(init_state, optimizer=optimizer), adapters)
    traced = jax.make_jaxpr(one_step(ADAPTED, optimizer))(state, batch(), None, frozen)
    stacks = {leaf.shape for leaf in base["layers"].values() if leaf.ndim > 2}
    assert stacks.isdisjoint(made_shapes(traced.jaxpr))
    # The search does find such arrays where they are made: of the adapters, and of a whole model.
    assert {leaf.shape for leaf in jax.tree.leaves(adapters)} <= made_shapes(traced.jaxpr)


def test_the_search_finds_the_gradient_of_a_whole_model(base):
    state = jax.eval_shape(partial(init_state, optimizer=optax.sgd(1.0)), base)
    traced = jax.make_jaxpr(one_step(FORWARD, optax.sgd(1.0)))(state, batch())
    stacks = {leaf.shape for leaf in base["layers"].values() if leaf.ndim > 2}
    assert stacks <= made_shapes(traced.jaxpr)


def made_shapes(jaxpr):
    """Shapes of all arrays of numbers that a program and those within it compute."""
    shapes = set()
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        for one in inner:
            shapes |= made_shapes(one)
        if not inner:
            shapes |= {variable.aval.shape for variable in equation.outvars}
    return shapes


def with_learner(body, trained, frozen, **changes):
    """Run `body(learner)` while the learner's thread serves."""
    rule = UpdateRule(
        forward=ADAPTED,
        loss=partial(policy_loss, config=AlgorithmConfig(kl=KlConfig(0.1))),
        optimizer=optax.sgd(0.5),
        batch_shape=SHAPE,
        keep_reference=True,
        **changes,
    )

    async def main():
        device = DeviceThread("headrace-learner")
        async with trio.open_nursery() as nursery:
            await nursery.start(device.serve)
            learner = Learner(trained, rule, device, frozen)
            result = await body(learner)
            nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


@pytest.mark.slow
def test_the_reference_may_be_the_base_whatever_the_adapters_start_as(base, adapters):
    """Adapters off: the plain decoder on the frozen parameters, of which there is no copy."""

    async def update(learner):
        return [(await learner.update(batch()))["ref_kl"] for _ in range(2)]

    found = with_learner(update, adapters, base, old_logprobs="rollout", base_forward=FORWARD)
    score = quick_jit(batch_logprobs, static_argnames="forward")
    logprobs = score((adapters, base), batch(), forward=ADAPTED)
    behind = (score(base, batch(), forward=FORWARD) - logprobs)[batch().loss_mask]
    np.testing.assert_allclose(found[0], np.mean(np.exp(behind) - 1 - behind), rtol=1e-3)
    assert found[0] > 1e-3
    assert found[1] != found[0]  # the policy moves


def test_the_base_as_reference_costs_no_copy_of_the_adapters(base, adapters):
    async def held(_):
        gc.collect()
        return len(jax.live_arrays())

    copied = with_learner(held, adapters, base)
    assert copied - with_learner(held, adapters, base, base_forward=FORWARD) == len(
        jax.tree.leaves(adapters)
    )


@pytest.mark.slow
def test_a_learner_trains_adapters_against_the_base_as_reference(base):
    """Fresh adapters are the base, so the reference costs no copy of it: it is their start."""
    fresh = quick_jit(init_lora, static_argnums=2)(jax.random.key(1), base, LORA)

    async def update_twice(learner):
        metrics = [await learner.update(batch()) for _ in range(2)]
        return metrics, learner.params

    (first, second), trained = with_learner(update_twice, fresh, base)
    assert first["ref_kl"] == 0.0
    assert second["ref_kl"] > 1e-6
    assert jax.tree.structure(trained) == jax.tree.structure(fresh)
    # What is frozen was neither copied nor donated: several learners may share it.
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(base))
