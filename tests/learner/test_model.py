"""The learner with the real decoder: packed equals alone, and an update moves the ratio."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss
from headrace.pipeline.learner import Anchors, batch_logprobs, init_state, train_step
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.parameters import init
from tests.learner.toy import VOCAB, quick_jit, toy_batch, toy_items, unpacked

CONFIG = ModelConfig(
    num_layers=2, width=16, num_heads=2, num_kv_heads=1, head_width=8, ffn_width=24
)
FORWARD = partial(forward, config=CONFIG)


@pytest.mark.slow
def test_law_10_packed_logprobs_are_those_of_each_sequence_alone():
    params = init(CONFIG, VOCAB, jax.random.key(0))
    score = quick_jit(partial(batch_logprobs, forward=FORWARD, temperature=0.6))
    packed = toy_batch(microbatches=2, rows=4)
    found = unpacked(score(params, packed), packed)
    for tokens, logprobs in zip(unpacked(packed.tokens, packed), found, strict=True):
        length = len(tokens)
        row = jnp.zeros((1, 12), jnp.int32).at[0, :length].set(tokens)
        segments = (jnp.arange(12, dtype=jnp.int32) < length).astype(jnp.int32)[None]
        hidden, head = FORWARD(params, row, jnp.arange(12, dtype=jnp.int32)[None], segments)
        scores = np.asarray(jax.nn.log_softmax(hidden[0] @ head.T / 0.6))
        expected = scores[np.arange(length - 1), tokens[1:]]
        np.testing.assert_allclose(logprobs[1:], expected, atol=1e-5)


def test_conformance_19_20_the_ratio_is_one_at_first_and_moves_then():
    params = init(CONFIG, VOCAB, jax.random.key(0))
    optimizer = make_optimizer(LearnerConfig(learning_rate=1e-2))
    batch = toy_batch(toy_items(), microbatches=2, rows=4)
    old = quick_jit(partial(batch_logprobs, forward=FORWARD, temperature=0.6))(params, batch)
    loss = partial(policy_loss, config=AlgorithmConfig())
    step = quick_jit(
        partial(train_step, forward=FORWARD, loss=loss, optimizer=optimizer, temperature=0.6)
    )
    state, first = step(init_state(params, optimizer), batch, Anchors(old, old))
    _, second = step(state, batch, Anchors(old, old))
    np.testing.assert_allclose(first["ratio_max"], 1.0, atol=1e-5)
    assert second["ratio_max"] > 1.001
    assert second["loss"] < first["loss"]
