"""A vocabulary seen through some tokens is the whole one, with the others added up."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.learner.top_k import logprobs_of, ranked_logprobs, top_tokens
from tests.learner.toy import quick_jit

R, T, D, V = 2, 700, 4, 9  # more than one chunk, the last one padded


def draw(seed, *shape):
    return quick_jit(jax.random.normal, static_argnums=1)(jax.random.key(seed), shape)


HIDDEN, HEAD = draw(0, R, T, D), draw(1, V, D)


def whole(temperature=1.0):
    """The distribution that each token was drawn from: the state before it, the shift."""
    hidden, head = np.asarray(HIDDEN, np.float64), np.asarray(HEAD, np.float64)
    before = np.concatenate([hidden[:, :1], hidden[:, :-1]], axis=1)
    logits = before @ head.T / temperature
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def found_and_scored(hidden, head, *, k, temperature):
    found = top_tokens(hidden, head, k=k, temperature=temperature)
    return found, logprobs_of(hidden, head, found.ids, temperature=temperature)


def categories(logprobs, ids):
    chosen = np.take_along_axis(logprobs, ids, -1)
    rest = 1.0 - np.exp(chosen).sum(-1, keepdims=True)
    return np.concatenate([np.exp(chosen), rest], -1)


@pytest.mark.parametrize(("k", "temperature"), [(3, 0.7), (V, 1.0)])
def test_top_tokens_are_the_likeliest_and_the_rest_is_what_is_left(k, temperature):
    expected = whole(temperature)
    both = quick_jit(partial(found_and_scored, k=k, temperature=temperature))
    (ids, logprobs), scored = both(HIDDEN, HEAD)
    np.testing.assert_array_equal(ids, np.argsort(-expected, axis=-1)[..., :k])
    found = np.exp(np.asarray(logprobs))
    np.testing.assert_allclose(found, categories(expected, np.asarray(ids)), atol=2e-6)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-6)
    np.testing.assert_allclose(np.exp(scored), found, atol=1e-6)


def test_only_the_first_entries_take_part_where_that_is_asked_for():
    ids, logprobs = quick_jit(partial(top_tokens, k=2, entries=5))(HIDDEN, HEAD)
    assert int(ids.max()) < 5
    cut = whole()[..., :5]
    cut = cut - np.log(np.exp(cut).sum(-1, keepdims=True))
    expected = categories(cut, np.asarray(ids))
    np.testing.assert_allclose(np.exp(logprobs), expected, atol=2e-6)


def test_gradients_are_those_of_whole_logits():
    ids = jnp.argsort(draw(3, R, T, V))[..., :3].astype(jnp.int32)
    weights = draw(2, R, T, 4)

    def in_chunks(hidden, head):
        return jnp.sum(weights * logprobs_of(hidden, head, ids))

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
        np.testing.assert_allclose(one, other, atol=1e-3)


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
