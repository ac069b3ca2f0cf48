"""The learner with the real decoder: laws of its gradient, and an update moves the ratio."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from headrace.pipeline.algorithms.losses import AlgorithmConfig, policy_loss
from headrace.pipeline.learner import Anchors, batch_logprobs, init_state, train_step
from headrace.pipeline.learner.optimizer import LearnerConfig, make_optimizer
from headrace.pipeline.learner.tiles import TileSize
from headrace.pipeline.learner.vocabulary import score_targets
from headrace.pipeline.models import packed
from headrace.pipeline.models.config import ModelConfig
from headrace.pipeline.models.decoder import forward
from headrace.pipeline.models.parameters import init
from headrace.pipeline.models.traits import AttentionTraits, Traits
from tests.learner.toy import VOCAB, quick_jit, spread, toy_batch, toy_items, unpacked

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


# One layer has a window, one has none, both cap their scores.
TRAITS = Traits(attention=AttentionTraits(score_cap=1.0, window=3, windowed_layers=(0,)))
UNUSED = VOCAB  # a token of no sequence


@pytest.fixture(scope="module")
def gradient():
    """The gradient of a batch through caps, windows and three blocks of queries."""
    config = ModelConfig(2, 8, 4, 2, 4, 6, tied_embeddings=False, traits=TRAITS)
    params = quick_jit(partial(init, config, VOCAB + 1))(jax.random.key(0))
    params["embedding"] = params["embedding"].at[UNUSED].set(jnp.nan)
    params["layers"]["query"] *= 4.0  # caps bite
    sgd = optax.sgd(1.0)
    loss = partial(policy_loss, config=AlgorithmConfig())
    step = quick_jit(
        partial(train_step, forward=partial(forward, config=config), loss=loss, optimizer=sgd)
    )

    def run(batch, devices=1):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("rows",))
        everywhere, by_row = (NamedSharding(mesh, spec) for spec in (P(), P(None, "rows")))
        state = jax.device_put(init_state(params, sgd), everywhere)
        arrays = jax.device_put(batch[:-2], by_row)
        state, metrics = step(state, type(batch)(*arrays, microbatches=batch.microbatches))
        assert metrics["skipped"] == 0
        change = jax.tree.map(lambda old, new: old - new, params, jax.device_get(state.params))
        change["embedding"] = change["embedding"][:UNUSED]
        return [*jax.tree.leaves(change), metrics["loss"]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "SMALLEST_BLOCK", 4)
        yield run


def test_law_11_nan_in_the_embeddings_of_padding_changes_nothing(gradient):
    batch = toy_batch()
    tokens = np.where(batch.segment_ids > 0, batch.tokens, UNUSED).astype(np.int32)
    for found, expected in zip(
        gradient(batch._replace(tokens=tokens)), gradient(batch), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("used", "order", "devices"),
    [(2, 1, 1), (4, -1, 1), (1, 1, 4)],
    ids=["split", "order", "mesh"],
)
def test_law_12_split_order_and_mesh_change_no_gradient(gradient, used, order, devices):
    batch = spread(toy_batch(), used)
    arrays = (array[::order, ::order] for array in batch[:-2])
    batch = type(batch)(*arrays, microbatches=batch.microbatches)
    for found, expected in zip(gradient(batch, devices), gradient(toy_batch()), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-5)


def test_hessian_times_vector_is_that_of_plain_code():
    """By forward over reverse: the backward passes that are written out can be differentiated."""
    params = init(CONFIG, VOCAB, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (2, 12), 0, VOCAB, jnp.int32)
    at = jnp.broadcast_to(jnp.arange(12, dtype=jnp.int32), tokens.shape)
    counted = at % 4 > 1

    def in_tiles(hidden, head):
        return score_targets(hidden, head, tokens, counted=counted, tile=TileSize(4, 16)).logprobs

    def plain(hidden, head):
        logprobs = jax.nn.log_softmax(hidden @ head.T)
        return jnp.take_along_axis(logprobs, tokens[..., None], axis=-1)[..., 0]

    def times_vector(score):
        def loss(params):
            hidden, head = FORWARD(params, tokens, at, jnp.ones_like(at))
            return jnp.where(counted, score(hidden, head), 0.0).sum()

        along = jax.tree.map(jnp.cos, params)
        return quick_jit(lambda: jax.jvp(jax.grad(loss), (params,), (along,))[1])()

    found, expected = (jax.tree.leaves(times_vector(score)) for score in (in_tiles, plain))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3 * np.abs(other).max())
