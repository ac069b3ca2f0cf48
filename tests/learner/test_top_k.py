"""A vocabulary seen through some tokens is the whole one, with the others added up."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.learner.tiles import TileSize
from headrace.pipeline.learner.top_k import logprobs_of, ranked_logprobs, top_tokens
from headrace.pipeline.models.head import OutputHead
from tests.learner.toy import quick_jit

R, T, D, V = 2, 50, 4, 9
# Several chunks of tokens, the last one padded, and of entries, the last one begun early.
TILE = TileSize(entries=4, logits=4 * 64)


def draw(seed, *shape):
    return quick_jit(jax.random.normal, static_argnums=1)(jax.random.key(seed), shape)


HIDDEN, HEAD = draw(0, R, T, D), draw(1, V, D)


def whole(temperature=1.0):
    """The distribution that each token was drawn from: the state before it, the shift."""
    hidden, head = np.asarray(HIDDEN, np.float64), np.asarray(HEAD, np.float64)
    before = np.concatenate([hidden[:, :1], hidden[:, :-1]], axis=1)
    logits = before @ head.T / temperature
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def found_and_scored(hidden, matrix, *, k, temperature, parts):
    head = OutputHead(matrix, parts=parts)
    found = top_tokens(hidden, head, k=k, temperature=temperature, tile=TILE)
    return found, logprobs_of(hidden, head, found.ids, temperature=temperature, tile=TILE)


def categories(logprobs, ids):
    chosen = np.take_along_axis(logprobs, ids, -1)
    rest = 1.0 - np.exp(chosen).sum(-1, keepdims=True)
    return np.concatenate([np.exp(chosen), rest], -1)


@pytest.mark.parametrize(("k", "temperature", "parts"), [(3, 0.7, 1), (V, 1.0, 1), (5, 1.0, 3)])
def test_top_tokens_are_the_likeliest_and_the_rest_is_what_is_left(k, temperature, parts):
    expected = whole(temperature)
    both = quick_jit(partial(found_and_scored, k=k, temperature=temperature, parts=parts))
    (ids, logprobs), scored = both(HIDDEN, HEAD)
    np.testing.assert_array_equal(ids, np.argsort(-expected, axis=-1)[..., :k])
    found = np.exp(np.asarray(logprobs))
    np.testing.assert_allclose(found, categories(expected, np.asarray(ids)), atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(np.exp(scored), found, atol=1e-6)


def test_only_the_first_entries_take_part_where_that_is_asked_for():
    ids, logprobs = quick_jit(partial(top_tokens, k=2, entries=5, tile=TILE))(HIDDEN, HEAD)
    assert int(ids.max()) < 5
    cut = whole()[..., :5]
    cut = cut - np.log(np.exp(cut).sum(-1, keepdims=True))
    expected = categories(cut, np.asarray(ids))
    np.testing.assert_allclose(np.exp(logprobs), expected, atol=2e-6)


def test_of_equal_tokens_the_first_are_taken():
    hidden, equal = HIDDEN[:, :3], jnp.ones((V, D))
    ids, logprobs = quick_jit(partial(top_tokens, k=5, tile=TILE))(hidden, equal)
    np.testing.assert_array_equal(ids, np.broadcast_to(np.arange(5), ids.shape))
    np.testing.assert_allclose(np.exp(logprobs[..., :-1]), 1 / V, rtol=1e-6)


@pytest.mark.parametrize("parts", [1, 3])
def test_gradients_are_those_of_whole_logits(parts):
    ids = jnp.argsort(draw(3, R, T, V))[..., :3].astype(jnp.int32)
    weights = draw(2, R, T, 4)

    def in_chunks(hidden, head):
        head = OutputHead(head, parts=parts)
        return jnp.sum(weights * logprobs_of(hidden, head, ids, tile=TILE))

    def at_once(hidden, head):
        before = jnp.concatenate([hidden[:, :1], hidden[:, :-1]], axis=1)
        logprobs = jax.nn.log_softmax(jnp.einsum("rtd,vd->rtv", before, head))
        chosen = jnp.take_along_axis(logprobs, ids, -1)
        others = ~jax.nn.one_hot(ids, V, dtype=bool).any(-2)
        rest = jax.nn.logsumexp(logprobs, axis=-1, where=others)[..., None]
        return jnp.sum(weights * jnp.concatenate([chosen, rest], -1))

    found, expected = quick_jit(
        lambda *both: [jax.grad(f, argnums=(0, 1))(*both) for f in (in_chunks, at_once)]
    )(HIDDEN, HEAD)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def compiled(entries, *, k=64):
    """A distillation's gradient: a teacher names k tokens, the student scores them."""
    tile = TileSize(entries=256, logits=2**14)

    def total(hidden, head, teacher):
        named = top_tokens(hidden, teacher, k=k, tile=tile)
        student = logprobs_of(hidden, head, named.ids, tile=tile)
        return jnp.sum(jnp.exp(named.logprobs) * (named.logprobs - student))

    shapes = [(2, 256, 2), (entries, 2), (entries, 2)]
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    program = jax.jit(jax.grad(total, argnums=(0, 1))).lower(*operands).compile()
    return program.memory_analysis()


def test_memory_stays_flat_as_the_vocabulary_grows():
    """Beside the heads and the gradient; all logits of 150,000 entries would be 293 MiB."""
    small, large = compiled(1_000), compiled(150_000)
    assert large.output_size_in_bytes > 150_000 * 2 * 4  # the gradient of the head
    assert abs(large.temp_size_in_bytes - small.temp_size_in_bytes) < 2**16
    assert large.temp_size_in_bytes < 2**21


def test_ranked_logprobs_tell_which_targets_are_likeliest():
    targets = jnp.argsort(draw(3, R, T, V))[..., 0].astype(jnp.int32)
    expected = whole()
    logprobs, best = quick_jit(ranked_logprobs)(HIDDEN, HEAD, targets)
    np.testing.assert_allclose(
        logprobs,
        np.take_along_axis(expected, np.asarray(targets)[..., None], -1)[..., 0],
        atol=1e-5,
    )
    np.testing.assert_array_equal(best, expected.argmax(-1) == targets)
