"""Logprobs of packed rows against one sequence at a time in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headrace.pipeline.learner.logprobs import (
    batch_logprobs,
    counted_tokens,
    predicted,
    row_logprobs,
)
from tests.learner.toy import (
    oracle_logprobs,
    quick_jit,
    toy_batch,
    toy_forward,
    toy_items,
    toy_params,
    unpacked,
)


def in_order_of(items, batch):
    """The items as the batch holds them: by their tokens, which differ."""
    by_tokens = {item.tokens.tobytes(): item for item in items}
    return [by_tokens[tokens.tobytes()] for tokens in unpacked(batch.tokens, batch)]


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_law_8_logprobs_are_of_the_tempered_distribution(temperature):
    items, params = toy_items(), toy_params()
    batch = toy_batch(items)
    score = quick_jit(partial(batch_logprobs, forward=toy_forward, temperature=temperature))
    found = unpacked(score(params, batch), batch)
    for logprobs, item in zip(found, in_order_of(items, batch), strict=True):
        expected, _ = oracle_logprobs(params, item, temperature)
        np.testing.assert_allclose(logprobs, expected, atol=1e-5)
        assert logprobs[0] == 0.0


def test_entropy_is_of_the_distribution_that_the_token_was_drawn_from():
    items, params = toy_items(), toy_params()
    batch = toy_batch(items, microbatches=1, rows=8)
    rows = jax.tree.map(lambda array: jnp.asarray(array[0]), batch._replace(microbatches=None))
    score = quick_jit(partial(row_logprobs, forward=toy_forward, temperature=0.8))
    _, entropy = score(params, rows)
    found = unpacked(entropy[None], batch)
    for values, item in zip(found, in_order_of(items, batch), strict=True):
        np.testing.assert_allclose(values, oracle_logprobs(params, item, 0.8)[1], atol=1e-5)


def test_law_10_packed_logprobs_are_those_of_each_sequence_alone():
    items, params = toy_items(), toy_params()
    packed = toy_batch(items)
    alone = toy_batch(items, microbatches=8, rows=1, row_tokens=9)
    score = quick_jit(partial(batch_logprobs, forward=toy_forward))
    key = [tokens.tobytes() for tokens in unpacked(alone.tokens, alone)]
    expected = dict(zip(key, unpacked(score(params, alone), alone), strict=True))
    found = unpacked(score(params, packed), packed)
    for tokens, logprobs in zip(unpacked(packed.tokens, packed), found, strict=True):
        np.testing.assert_allclose(logprobs, expected[tokens.tobytes()], atol=1e-6)


def test_first_tokens_and_padding_are_predicted_by_nothing():
    segments = jnp.array([[1, 1, 2, 2, 2, 3, 0, 0]], jnp.int32)
    np.testing.assert_array_equal(
        predicted(segments)[0], [False, True, False, True, True, False, False, False]
    )


def test_conformance_15_padding_that_equals_eos_does_not_count_and_a_sampled_eos_does():
    eos = 0  # also the id of padding
    item = toy_items(lengths=(5,))[0]
    item.tokens[-1] = eos
    batch = toy_batch([item], microbatches=1, rows=1, row_tokens=9)
    counted = np.asarray(counted_tokens(batch))[0, 0]
    assert counted[4]
    assert not counted[5:].any()
    np.testing.assert_array_equal(batch.tokens[0, 0, 4:], 0)


def test_only_microbatches_in_use_count():
    batch = toy_batch(microbatches=2, rows=2, row_tokens=24)
    one = batch._replace(microbatches=np.int32(1))
    assert not np.asarray(counted_tokens(one))[1:].any()
    np.testing.assert_array_equal(counted_tokens(one)[0], counted_tokens(batch)[0])
