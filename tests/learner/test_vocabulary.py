"""Scores in tiles: those of the whole softmax, with its gradients, in memory that stays flat."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from headrace.pipeline.learner.tiles import TileSize
from headrace.pipeline.learner.vocabulary import score_targets
from headrace.pipeline.models.head import OutputHead, logits
from headrace.sharding.mesh import FSDP, TENSOR, make_mesh
from tests.learner.toy import quick_jit

ROWS, TOKENS, ENTRIES, WIDTH = 2, 5, 12, 3
FLAT_ROWS, FLAT_TOKENS = 2, 256


def weighted(scores):
    """A number that all logprobs and entropies decide."""
    logprobs, entropy = scores[:2]
    weights = jnp.cos(jnp.arange(logprobs.size, dtype=jnp.float32)).reshape(logprobs.shape)
    return jnp.sum(weights * logprobs) + 0.3 * jnp.sum(weights[::-1] * entropy)


def whole_softmax(hidden, head, targets, temperature):
    scores = jax.nn.log_softmax(logits(hidden, head) / temperature)
    logprobs = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
    return logprobs, -jnp.sum(jnp.exp(scores) * scores, axis=-1)


@partial(quick_jit, static_argnums=0)
def drawn(seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    hidden = 3.0 * jax.random.normal(keys[0], (ROWS, TOKENS, WIDTH))
    matrix = jax.random.normal(keys[1], (ENTRIES, WIDTH))
    return hidden, matrix, jax.random.randint(keys[2], (ROWS, TOKENS), 0, ENTRIES, jnp.int32)


def both_gradients(score):
    def total(hidden, head, targets):
        return weighted(score(hidden, head, targets))

    return quick_jit(jax.value_and_grad(total, argnums=(0, 1)))


plain_gradients = both_gradients(partial(whole_softmax, temperature=0.7))


@pytest.mark.parametrize(
    ("tile", "cap", "parts"),
    [
        (TileSize(1, 1), None, 1),
        (TileSize(5, 30), 2.5, 1),
        (TileSize(20, 10**6), None, 1),
        (TileSize(7, 30), None, 3),
        (TileSize(1, 1), 2.5, 12),
    ],
    ids=["one logit", "uneven", "all at once", "uneven in parts", "one logit of each part"],
)
def test_tiles_of_any_size_change_neither_values_nor_gradients(tile, cap, parts):
    hidden, matrix, targets = drawn()
    head = matrix if cap is None and parts == 1 else OutputHead(matrix, cap, parts)
    found = both_gradients(partial(score_targets, temperature=0.7, tile=tile))
    for left, right in zip(
        jax.tree.leaves(found(hidden, head, targets)),
        jax.tree.leaves(plain_gradients(hidden, head, targets)),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_scores_of_counted_tokens_and_their_gradients_are_those_that_all_have(share):
    operands = drawn()
    counted = np.random.default_rng(0).random((ROWS, TOKENS)) < share

    def of_counted(score):
        def scores(hidden, head, targets):
            return [jnp.where(counted, found, 0.0) for found in score(hidden, head, targets)[:2]]

        return both_gradients(scores)(*operands)

    in_tiles = partial(score_targets, temperature=0.7, tile=TileSize(5, 30), counted=counted)
    found, expected = map(of_counted, (in_tiles, partial(whole_softmax, temperature=0.7)))
    for left, right in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_tokens_that_do_not_count_are_not_looked_at():
    hidden, matrix, targets = drawn()
    counted = jnp.zeros((ROWS, TOKENS), bool).at[0, 3].set(True).at[1, 0].set(True)
    hidden = jnp.where(counted[..., None], hidden, jnp.nan)

    def score(*operands):
        scores = score_targets(*operands, tile=TileSize(5, 10), counted=counted)
        assert scores.logprobs.shape == counted.shape
        return scores

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(score(hidden, matrix, targets)))
    gradients = both_gradients(score)(hidden, matrix, targets)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("scale", [1e-4, 30.0])
def test_scores_of_flat_and_of_sharp_distributions_are_exact(scale):
    hidden, matrix, targets = drawn(1)
    tile = TileSize(entries=4, logits=8)
    found = score_targets(hidden * scale, matrix, targets, tile=tile)
    z = np.asarray(hidden * scale, np.float64) @ np.asarray(matrix, np.float64).T
    scores = z - np.log(np.exp(z - z.max(-1, keepdims=True)).sum(-1, keepdims=True))
    scores = scores - z.max(-1, keepdims=True)
    chosen = np.take_along_axis(scores, np.asarray(targets)[..., None], -1)[..., 0]
    np.testing.assert_allclose(found[0], chosen, rtol=1e-5, atol=1e-5)
    entropy = -(np.exp(scores) * scores).sum(-1)
    np.testing.assert_allclose(found[1], entropy, rtol=1e-4, atol=1e-5)


def compiled(entries, *, head_learns=True):
    arguments = (0, 1) if head_learns else (0,)
    tile = TileSize(entries=256, logits=2**14)

    def total(hidden, head, targets):
        return weighted(score_targets(hidden, head, targets, tile=tile))

    shapes = [(FLAT_ROWS, FLAT_TOKENS, 2), (entries, 2), (FLAT_ROWS, FLAT_TOKENS)]
    types = [jnp.float32, jnp.float32, jnp.int32]
    operands = [jax.ShapeDtypeStruct(*both) for both in zip(shapes, types, strict=True)]
    program = jax.jit(jax.grad(total, argnums=arguments)).lower(*operands).compile()
    return program.memory_analysis()


def test_memory_stays_flat_as_the_vocabulary_grows():
    """Beside the head and its gradient; all logits of 150,000 entries would be 293 MiB."""
    small, large = compiled(1_000), compiled(150_000)
    assert large.output_size_in_bytes > 150_000 * 2 * 4  # the gradient of the head
    assert abs(large.temp_size_in_bytes - small.temp_size_in_bytes) < 2**16
    assert large.temp_size_in_bytes < 2**20


def test_a_frozen_head_gets_no_gradient_and_no_memory_for_it():
    assert compiled(150_000, head_learns=False).temp_size_in_bytes < 2**20


@pytest.mark.parametrize("some", [False, True], ids=["all count", "some count"])
def test_rows_and_a_vocabulary_cut_over_a_mesh_stay_where_they_are(some):
    """Devices exchange sums over tokens; entries, or their gradients, never."""
    mesh = make_mesh(jax.devices(), {FSDP: 2, TENSOR: 4})
    cut, rows = NamedSharding(mesh, P(TENSOR)), NamedSharding(mesh, P(FSDP))
    entries, parts = 256, 4

    def total(hidden, matrix, targets):
        head = OutputHead(matrix, parts=parts)
        counted = targets % 2 == 0 if some else None
        tile = TileSize(32, 64)
        logprobs, entropy, *_ = score_targets(hidden, head, targets, counted=counted, tile=tile)
        return jnp.sum(logprobs) + jnp.sum(entropy)

    places = (rows, cut, rows)
    step = jax.jit(jax.grad(total, argnums=(0, 1)), in_shardings=places, out_shardings=places[:2])
    shapes = [(ROWS, TOKENS, WIDTH), (entries, WIDTH), (ROWS, TOKENS)]
    types = [jnp.float32, jnp.float32, jnp.int32]
    operands = [jax.ShapeDtypeStruct(*both) for both in zip(shapes, types, strict=True)]
    text = step.lower(*operands).compile().as_text()
    sent = re.findall(r"= \S+ (all-gather|all-to-all|collective-permute|reduce-scatter)\(", text)
    assert not sent, "only sums are exchanged"
    assert "all-reduce" in text
